"""What was seen → a verdict, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from iobench.base.units import bytes_text, counted, rate_text, seconds_text
from iobench.diagnose.checks import CHECKS
from iobench.diagnose.evidence import Advice, Evidence
from iobench.diagnose.loop_stats import LoopStats
from iobench.diagnose.sample_checks import growth
from iobench.results import others, stats
from iobench.results.parts import OthersPart
from iobench.tuning.candidate import compared

if TYPE_CHECKING:
    from iobench.diagnose.profiling import Profile
    from iobench.tuning.candidate import Candidate

BOTTLENECK = 0.10  # of the time spent waiting: below this, loading is none
MOST = 0.5  # from which on it is the bottleneck
SLOWER = (
    "each turn took longer than the one before, {:.1f} × in all, whatever was set: no settings could be "
    "compared; see what it keeps from epoch to epoch"
)
SHORT_BATCHES, SHORT_S = 3, 0.05  # a loop below either tells nothing


@dataclass(frozen=True)
class Diagnosis:
    """A verdict on a loop, and advice, the largest gain first.

    `bottleneck` is None where the loop had no step to compare with. `warnings` are reasons not to believe it.
    """

    seen: LoopStats
    bottleneck: bool | None
    verdict: str
    advice: list[Advice]
    candidates: list[Candidate] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        plain = {**asdict(replace(self, candidates=[])), "seen": self.seen.as_dict()}
        return {**plain, "candidates": [candidate.as_dict() for candidate in self.candidates]}


def diagnose(
    seen: LoopStats,
    candidates: Sequence[Candidate] = (),
    profiles: Sequence[Profile] = (),
    alone: bool = False,
    beside: Sequence[OthersPart] = (),
    slower: float | None = None,
) -> Diagnosis:
    """The diagnosis of a loop; `alone` where the loop did nothing with its batches.

    `beside` is what other processes did during later steps than the loop; `slower` how many times as long
    the last turns took as the first, where each took longer than those before it.
    """
    short = seen.batches < SHORT_BATCHES or seen.elapsed_s < SHORT_S
    bottleneck = None if alone or short else seen.wait_share >= BOTTLENECK
    warnings = others.said([seen.others, *beside], "steps")
    against = compared(candidates) if candidates and slower is None else {}
    evidence = Evidence(seen, list(candidates), list(profiles), against, bool(warnings))
    slow = alone or bottleneck
    found = [check(evidence) for check in CHECKS] if slow else [growth(evidence)]
    advice = sorted((one for one in found if one is not None), key=lambda one: -(one.gain or 0.0))
    return Diagnosis(
        seen,
        bottleneck,
        _verdict(seen, bottleneck, alone),
        advice,
        list(candidates),
        list(profiles),
        [*warnings, *([SLOWER.format(slower)] if slower is not None else [])],
    )


def _verdict(seen: LoopStats, bottleneck: bool | None, alone: bool) -> str:
    if seen.batches == 0:
        return "The loader yielded nothing."
    speed = f"{rate_text(seen.rate)} {'samples' if seen.samples else 'batches'}/s"
    if seen.samples:
        speed += f", {bytes_text(seen.bytes_per_s)}/s"
    if alone and seen.batches > 1:
        return f"Alone, the loader gives {speed}."
    if alone or bottleneck is None:
        took = seconds_text(seen.elapsed_s)
        return f"Too short to tell: {counted(seen.batches, 'batch', 'batches')} in {took}."
    waiter = "the step" if seen.device == "cpu" else f"{seen.device} (by its own clock)"
    waits = f"{waiter} waits {seen.wait_share:.0%} of the time"
    if bottleneck and seen.wait_share < MOST:
        return f"Loading costs time: {waits} ({speed}).{_headroom(seen)}"
    if bottleneck:
        return f"Loading is the bottleneck: {waits} ({speed}).{_headroom(seen)}"
    return f"Loading is not the bottleneck: {waits} ({speed}).{_headroom(seen)}"


def _headroom(seen: LoopStats) -> str:
    """What the best possible loader would bring, where batches were replayed."""
    if seen.headroom is None:
        return ""
    if seen.headroom < 1 + stats.WORTH_NAMING:
        return (
            f" Loading is not your problem: over batches that were on the device already the loop was "
            f"{seen.headroom:.2f} × as fast, and no loader can bring more."
        )
    return (
        f" The best possible loader would make the loop {seen.headroom:.2f} × as fast: that of batches that "
        "were on the device already."
    )
