"""What is said of cases that there was no time for, and where nothing could be measured at all."""

from __future__ import annotations

from iobench.base.errors import (
    LoaderFailed,
)
from iobench.base.units import counted
from iobench.bench.outcome import Run
from iobench.recommendation.requirements import Requirements


def nothing(run: Run, requirements: Requirements) -> LoaderFailed:
    """That no case gave a figure, why, and how many had no time to."""
    reasons = list(dict.fromkeys(run.failures.values()))
    if run.skipped:
        tried = len(run.cases) - len(run.skipped)
        reasons.append(
            f"{tried} of {counted(len(run.cases), 'case')} were tried in --max-time {requirements.max_time_s:g}, "
            "give a longer one for the others"
        )
    return LoaderFailed(f"no case could be measured: {'; '.join(reasons)} (records: {run.path})")


def too_late(raced: Run, requirements: Requirements) -> LoaderFailed:
    """That all the time went before anything could be measured again, on which an answer rests."""
    tried = len(raced.cases) - len(raced.skipped)
    return LoaderFailed(
        f"--max-time {requirements.max_time_s:g} was over when {tried} of {counted(len(raced.cases), 'case')} had "
        f"been tried, and none of them measured again; give at least --max-time {2 * requirements.max_time_s:g} "
        f"(records: {raced.path})"
    )


def left_out(again: Run, how: str, requirements: Requirements) -> list[str]:
    """Which finalists there was no time for, in a sentence; none where there was for all."""
    if not again.skipped:
        return []
    named = again.labels
    called = "; ".join(str(named[key]) for key in again.skipped)
    longer = f"give a longer --max-time than {requirements.max_time_s:g}"
    return [f"There was no time to measure {called} {how}, and nothing is said of it: {longer}."]
