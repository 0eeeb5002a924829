"""What speaks for an illness, and what is said about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iobench.diagnose.seen import Seen
from iobench.results import stats
from iobench.results.stats import Comparison, Estimate
from iobench.tuning.trial import Trial

if TYPE_CHECKING:  # it loads torch
    from iobench.diagnose.profiling import Profiled


@dataclass(frozen=True)
class Advice:
    """One thing to do, and what was seen that speaks for it."""

    kind: str
    said: str
    gain: float | None = None  # times as fast, where it was tried


@dataclass(frozen=True)
class Gain:
    """What a setting brought in fresh rounds in which it and the loader as it is took turns."""

    trial: Trial
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
            if self.trial.whole
            else f"the first {self.trial.batches:,} batches; give more --seconds to be sure of whole epochs"
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

    seen: Seen
    trials: list[Trial]
    profiles: list[Profiled]
    against: Mapping[str, Comparison]
    beside: bool = False  # other work went on meanwhile

    def gain(self, wanted: Callable[[Trial], bool]) -> Gain | None:
        """The best of the settings of a kind that are surely faster than the loader as it is."""
        faster = [
            trial
            for trial in self.trials[1:]
            if wanted(trial) and trial.name in self.against and self.against[trial.name].outcome == "faster"
        ]
        best = max(faster, key=lambda trial: self.against[trial.name].ratio.median, default=None)
        return Gain(best, self.against[best.name].ratio, self.beside) if best else None

    def hopeful(self, kind: str) -> bool:
        """Whether a setting of a kind may bring something, and had too little time to tell."""
        return any(
            trial.kind == kind
            and not trial.failed
            and len(trial.fresh) < stats.FEWEST
            and (not trial.rates or trial.rate > self.trials[0].rate)
            for trial in self.trials[1:]
        )

    @property
    def fetching(self) -> Profiled | None:
        """The profile of whichever process asks the dataset for samples."""
        return self.profiles[-1] if self.profiles else None

    @property
    def per_sample_s(self) -> float:
        """Of loading alone, after the first batch."""
        steady = self.seen.samples * (self.seen.batches - 1) / max(1, self.seen.batches)
        return self.seen.wait_s / steady if steady else 0.0
