"""Errors and findings for cases that there was no time for, or that could not be measured at all."""

from __future__ import annotations

from collections.abc import Iterator

from iobench.advise.requirements import Requirements
from iobench.advise.sentences import some
from iobench.base.errors import IobenchError, LoaderFailed
from iobench.base.finding import Finding
from iobench.base.units import counted
from iobench.bench.outcome import Run


def nothing_measured(run: Run, requirements: Requirements) -> LoaderFailed:
    """Return the error for a run in which no case could be measured."""
    reasons = "; ".join(dict.fromkeys(map(str, run.failures.values())))
    hint = None
    if run.skipped:
        tried = len(run.cases) - len(run.skipped)
        hint = (
            f"{tried} of {counted(len(run.cases), 'case')} were tried in "
            f"--max-time {requirements.max_time_s:g}: give a longer one"
        )
    return LoaderFailed(
        f"no case could be measured{f': {reasons}' if reasons else ''} (records: {run.path})",
        kind="no-case-measured",
        hint=hint,
    )


def no_final_rounds() -> Iterator[Finding]:
    """Yield the finding for a race that took all the time."""
    yield Finding("no-final-rounds", "No time was left for final rounds")


def ended_early(ended: BaseException | None, rounds: str) -> Iterator[Finding]:
    """Yield the finding for rounds that Ctrl-C or an error ended; `rounds` names them."""
    if isinstance(ended, KeyboardInterrupt):
        yield Finding(
            "interrupted", f"Interrupted in the {rounds}: the answer rests on what was measured until then"
        )
    elif isinstance(ended, IobenchError):
        yield Finding("stopped", f"The {rounds} ended early: {ended}", values={"error": ended.kind})


def skipped_finalists(run: Run, rounds: str) -> Iterator[Finding]:
    """Yield the finding for finalists that there was no time for; `rounds` names the rounds."""
    if run.skipped:
        labels = run.labels
        names = some([str(labels[key]) for key in run.skipped])
        yield Finding(
            "finalists-skipped",
            f"There was no time for the {rounds} of {names}",
            values={"cases": names, "skipped": len(run.skipped), "rounds": rounds},
        )
