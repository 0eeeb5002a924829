"""Diagnosis: from the measurements of a loop to a verdict and advice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from iobench.advise import sentences
from iobench.advise.answer import Answer
from iobench.advise.checks import cost_checks, decoding_checks, sample_checks, setting_checks
from iobench.advise.checks.cost_checks import where_the_time_goes
from iobench.advise.checks.evidence import VARYING, Advice, Evidence
from iobench.advise.checks.loop_stats import LoopStats
from iobench.advise.checks.loop_tables import loop_table, profile_table
from iobench.advise.checks.sample_checks import memory_growth
from iobench.advise.settings.candidate import compare_to_baseline
from iobench.advise.tuning_result import candidates_table, unsuccessful, was_tried
from iobench.base.background_load import BackgroundLoad
from iobench.base.finding import Finding
from iobench.base.units import bytes_text, counted, rate_text, seconds_text
from iobench.results import history
from iobench.results.background_signs import background_warnings
from iobench.results.columns import Columns
from iobench.results.record_json import plain
from iobench.results.run_warning import RunWarning, Values
from iobench.results.stats import Comparison, Estimate

if TYPE_CHECKING:
    from iobench.advise.checks.profiling import Profile
    from iobench.advise.settings.candidate import Candidate

CHECKS = (*setting_checks.CHECKS, *sample_checks.CHECKS, *decoding_checks.CHECKS, *cost_checks.CHECKS)
# kinds of advice that say what the work for each sample or batch is
EXPLAINING = frozenset(
    (
        *("decoding", "jpeg-draft", "jpeg-decoder", "python-lists", "single-elements", "dataframe-rows"),
        *("file-per-sample", "file-reopened", "manager-proxy", "lock", "garbage-collection", "collate"),
        "hdf5-chunks",
        *("tensor-dataset", "per-sample", "default-collate"),
    )
)
BOTTLENECK = 0.10  # of the time spent waiting: below this, loading is not the bottleneck
MOST = 0.5  # of the time, from which on it is
NOTHING_FASTER = Finding("nothing-faster", "No other setting that was tried is faster")
MIN_BATCHES, MIN_S = 3, 0.05  # shorter loops support no verdict


@dataclass(frozen=True, kw_only=True)
class Diagnosis(Answer):
    """A verdict on a loop, which is its first finding, and advice, the largest gain first.

    The outcome is ``bottleneck``, ``costs-time``, ``not-bottleneck``, ``too-short``, ``loader-alone`` or
    ``empty``.
    """

    loop: LoopStats
    bottleneck: bool | None  # loading costs at least 10 % of the time; None without a step
    alone: bool = False  # the loop did nothing with its batches
    candidates: list[Candidate] = field(default_factory=list)  # that were tried; the first is the baseline
    profiles: list[Profile] = field(default_factory=list)  # of the main process and the workers

    @property
    def verdict(self) -> Finding:
        """Verdict on the loop."""
        return self.findings[0]

    @property
    def advice(self) -> list[Advice]:
        """Changes, the largest gain first."""
        return [one for one in self.findings if isinstance(one, Advice)]

    def tables(self) -> Iterator[Columns]:
        """Yield the figures of the loop, the settings that were tried, and the profiles."""
        yield loop_table(self.loop, self.alone)
        if any(map(was_tried, self.candidates)):
            yield candidates_table(self.candidates, compare_to_baseline(self.candidates))
        yield from map(profile_table, self.profiles)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row with the figures of the loop."""
        return [history.flattened(plain(self.loop))]


def diagnose(
    loop: LoopStats,
    candidates: Sequence[Candidate] = (),
    profiles: Sequence[Profile] = (),
    alone: bool = False,
    background: Sequence[BackgroundLoad] = (),
    slowdown: float | None = None,
    skipped: Sequence[Finding] = (),
) -> Diagnosis:
    """Return the diagnosis of a loop, which did nothing with its batches if it was `alone`.

    `background` is the load of other processes during later steps of the diagnosis, `slowdown` the ratio of
    the first turns' rates to the last ones', if each turn was slower than the one before.
    """
    short = loop.batches < MIN_BATCHES or loop.elapsed_s < MIN_S
    bottleneck = None if alone or short else loop.wait_share >= BOTTLENECK
    warnings = background_warnings([loop.background, *background])
    against = compare_to_baseline(candidates) if candidates and slowdown is None else {}
    varying = any(one.kind == VARYING for one in skipped)
    evidence = Evidence(loop, list(candidates), list(profiles), against, bool(warnings), varying)
    slow = alone or bottleneck
    results = [check(evidence) for check in CHECKS] if slow else [memory_growth(evidence)]
    advice = sorted((one for one in results if one is not None), key=lambda one: -(one.gain or 0.0))
    verdict = _verdict(loop, bottleneck, alone)
    best = [sentences.headroom(Estimate(loop.headroom, None, None))] if loop.headroom is not None else []
    explained = any(one.kind in EXPLAINING for one in advice)
    where = list(where_the_time_goes(evidence)) if slow and not explained else []
    tried = any(one.rates for one in candidates[1:])
    nothing = [_nothing_faster(against)] if tried and slow and not advice else []
    return Diagnosis(
        outcome=verdict.kind,
        findings=[verdict, *best, *advice, *nothing, *where],
        skipped=[*skipped, *unsuccessful(candidates)],
        warnings=[*warnings, *([_slowing_down(slowdown)] if slowdown is not None else [])],
        loop=loop,
        bottleneck=bottleneck,
        alone=alone,
        candidates=list(candidates),
        profiles=list(profiles),
    )


def _nothing_faster(against: Mapping[str, Comparison]) -> Finding:
    """Return that no setting was faster, or that there were too few rounds to tell."""
    others = list(against.values())
    return (
        sentences.undecided("the baseline", others, {}) if sentences.is_undecided(others) else NOTHING_FASTER
    )


def _slowing_down(ratio: float) -> RunWarning:
    """Each turn of the loader took longer than the one before, whatever its settings."""
    return RunWarning(
        "slowing-down",
        f"each turn took longer than the one before, {ratio:.1f} × in total: settings cannot be compared",
        hints=("look for what the loader keeps from epoch to epoch",),
        values={"ratio": ratio},
    )


def _verdict(loop: LoopStats, bottleneck: bool | None, alone: bool) -> Finding:
    if loop.batches == 0:
        return Finding("empty", "The loader yielded no batches")
    unit = "samples" if loop.samples else "batches"
    speed = f"{rate_text(loop.rate)} {unit}/s"
    values: Values = {f"{unit}_per_s": loop.rate, "batches": loop.batches}
    if loop.samples:
        speed += f", {bytes_text(loop.bytes_per_s)}/s"
        values["bytes_per_s"] = loop.bytes_per_s
    if alone and loop.batches > 1:
        return Finding("loader-alone", f"The loader alone delivers {speed}", values=values)
    if alone or bottleneck is None:
        took = f"{counted(loop.batches, 'batch', 'batches')} in {seconds_text(loop.elapsed_s)}"
        return Finding("too-short", f"Too short for a verdict: {took}", values=values)
    kind, statement = _judgement(loop.wait_share)
    waiter = "the step" if loop.device == "cpu" else f"{loop.device} (by its own clock)"
    message = f"{statement}: {waiter} waits {loop.wait_share:.0%} of the time ({speed})"
    values |= {"wait_share": loop.wait_share, "device": loop.device}
    return Finding(kind, message, values=values)


def _judgement(wait_share: float) -> tuple[str, str]:
    if wait_share >= MOST:
        return "bottleneck", "Loading is the bottleneck"
    if wait_share >= BOTTLENECK:
        return "costs-time", "Loading costs time"
    return "not-bottleneck", "Loading is not the bottleneck"
