"""What speaks for an illness, and what is said about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iobench.diagnose.loop_stats import LoopStats
from iobench.results import stats
from iobench.results.stats import Comparison, Estimate
from iobench.tuning.candidate import Candidate

if TYPE_CHECKING:  # it loads torch
    from iobench.diagnose.profiling import Profile


@dataclass(frozen=True)
class Advice:
    """One thing to do, and what was seen that speaks for it."""

    kind: str
    said: str
    gain: float | None = None  # times as fast, where it was tried


@dataclass(frozen=True)
class Gain:
    """What a setting brought in fresh rounds in which it and the loader as it is took turns."""

    candidate: Candidate
    ratio: Estimate
    beside: bool

    @property
    def times(self) -> float:
        """How many times as fast it was."""
        return self.ratio.median

    @property
    def said(self) -> str:
        """The same with its interval, what it was measured over, and whether anything went on beside it."""
        what = (
            "whole epochs"
            if self.candidate.whole
            else f"the first {self.candidate.batches:,} batches; give more --seconds to be sure of whole epochs"
        )
        between = (
            f" ({self.ratio.low:.1f} to {self.ratio.high:.1f})" if self.ratio.low and self.ratio.high else ""
        )
        busy = ", beside other work: alone it may differ" if self.beside else ""
        return f"{self.times:.1f} × as fast{between} over {what}{busy}"


@dataclass
class Evidence:
    """What speaks for an illness: a loop, settings that were tried, profiles.

    `against` holds each setting that had fresh rounds against the loader as it is.
    """

    seen: LoopStats
    candidates: list[Candidate]
    profiles: list[Profile]
    against: Mapping[str, Comparison]
    beside: bool = False  # other work went on meanwhile

    def gain(self, wanted: Callable[[Candidate], bool]) -> Gain | None:
        """The best of the settings of a kind that are surely faster than the loader as it is."""
        faster = [
            candidate
            for candidate in self.candidates[1:]
            if wanted(candidate) and candidate.name in self.against and self.against[candidate.name].outcome == "faster"
        ]
        best = max(faster, key=lambda candidate: self.against[candidate.name].ratio.median, default=None)
        return Gain(best, self.against[best.name].ratio, self.beside) if best else None

    def hopeful(self, kind: str) -> bool:
        """Whether a setting of a kind may bring something, and had too little time to tell."""
        return any(
            candidate.kind == kind
            and not candidate.failed
            and len(candidate.fresh) < stats.FEWEST
            and (not candidate.rates or candidate.rate > self.candidates[0].rate)
            for candidate in self.candidates[1:]
        )

    @property
    def fetching(self) -> Profile | None:
        """The profile of whichever process asks the dataset for samples."""
        return self.profiles[-1] if self.profiles else None

    @property
    def per_sample_s(self) -> float:
        """Of loading alone, after the first batch."""
        steady = self.seen.samples * (self.seen.batches - 1) / max(1, self.seen.batches)
        return self.seen.wait_s / steady if steady else 0.0
