"""Diagnosis: from the measurements of a loop to a verdict and advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from iobench.base.finding import Finding
from iobench.base.units import bytes_text, counted, rate_text, seconds_text
from iobench.diagnose.checks import CHECKS
from iobench.diagnose.evidence import Advice, Evidence
from iobench.diagnose.loop_stats import LoopStats
from iobench.diagnose.sample_checks import memory_growth
from iobench.results import stats
from iobench.results.background_signs import background_warnings
from iobench.results.parts import BackgroundPart
from iobench.results.run_warning import RunWarning
from iobench.tuning.candidate import compare_to_baseline

if TYPE_CHECKING:
    from iobench.diagnose.profiling import Profile
    from iobench.tuning.candidate import Candidate

BOTTLENECK = 0.10  # of the time spent waiting: below this, loading is not the bottleneck
MOST = 0.5  # of the time, from which on it is
MIN_BATCHES, MIN_S = 3, 0.05  # shorter loops support no verdict


@dataclass(frozen=True)
class Diagnosis:
    """A verdict on a loop, and advice.

    Attributes
    ----------
    loop : LoopStats
        Measurements of the loop.
    bottleneck : bool or None
        Whether loading costs at least 10 % of the time; None without a step to compare with.
    verdict : Finding
        Its kind is ``bottleneck``, ``costs-time``, ``not-bottleneck``, ``too-short``, ``loader-alone`` or
        ``empty``.
    advice : list of Advice
        What to change, the largest gain first.
    candidates : list of Candidate
        Settings that were tried; the first is the baseline.
    profiles : list of Profile
        CPU profiles of the main process and the workers.
    warnings : list of RunWarning
        Reasons not to believe it.
    """

    loop: LoopStats
    bottleneck: bool | None
    verdict: Finding
    advice: list[Advice]
    candidates: list[Candidate] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    warnings: list[RunWarning] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, for JSON."""
        return {
            **asdict(replace(self, candidates=[])),
            "loop": self.loop.as_dict(),
            "candidates": [one.as_dict() for one in self.candidates],
            "warnings": [one.as_dict() for one in self.warnings],
        }


def diagnose(
    loop: LoopStats,
    candidates: Sequence[Candidate] = (),
    profiles: Sequence[Profile] = (),
    alone: bool = False,
    background: Sequence[BackgroundPart] = (),
    slowdown: float | None = None,
) -> Diagnosis:
    """Return the diagnosis of a loop.

    Parameters
    ----------
    loop : LoopStats
        Measurements of the loop.
    candidates : sequence of Candidate
        Settings that were tried; the first is the baseline.
    profiles : sequence of Profile
        CPU profiles.
    alone : bool
        The loop did nothing with its batches, so that there is no step to compare with.
    background : sequence of BackgroundPart
        Load of other processes during later steps of the diagnosis.
    slowdown : float, optional
        Ratio of the first turns' rates to the last ones', where each turn was slower than the one before.
    """
    short = loop.batches < MIN_BATCHES or loop.elapsed_s < MIN_S
    bottleneck = None if alone or short else loop.wait_share >= BOTTLENECK
    warnings = background_warnings([loop.background, *background])
    against = compare_to_baseline(candidates) if candidates and slowdown is None else {}
    evidence = Evidence(loop, list(candidates), list(profiles), against, bool(warnings))
    slow = alone or bottleneck
    results = [check(evidence) for check in CHECKS] if slow else [memory_growth(evidence)]
    advice = sorted((one for one in results if one is not None), key=lambda one: -(one.gain or 0.0))
    return Diagnosis(
        loop,
        bottleneck,
        _verdict(loop, bottleneck, alone),
        advice,
        list(candidates),
        list(profiles),
        [*warnings, *([_slowing_down(slowdown)] if slowdown is not None else [])],
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
    values: dict[str, float | int | str] = {f"{unit}_per_s": loop.rate, "batches": loop.batches}
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
    if loop.headroom is not None:
        message += f". {_headroom(loop.headroom)}"
        values["headroom"] = loop.headroom
    return Finding(kind, message, values=values)


def _judgement(wait_share: float) -> tuple[str, str]:
    if wait_share >= MOST:
        return "bottleneck", "Loading is the bottleneck"
    if wait_share >= BOTTLENECK:
        return "costs-time", "Loading costs time"
    return "not-bottleneck", "Loading is not the bottleneck"


def _headroom(times: float) -> str:
    """Return the gain of the best possible loader in words, from replayed batches."""
    if times < 1 + stats.MIN_DIFFERENCE:
        return f"With batches already on the device it is {times:.2f} × as fast: no loader can bring more"
    return f"The best possible loader would make the loop {times:.2f} × as fast"
