"""Candidate settings of a loader and their measurements."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from iobench.base.finding import Finding
from iobench.results import ranking, stats
from iobench.results.record import Record
from iobench.results.stats import Comparison

if TYPE_CHECKING:  # it loads torch
    from iobench.advise.settings.turn import Turn

BASELINE = "baseline"  # the loader with the settings it came with
HEADROOM = "batches already on the device"
UNSENDABLE = "cannot-pickle-batches"  # kind of the finding that workers could not send batches
FIGURES = (  # in JSON
    *("name", "changes", "kind", "eliminated"),
    *("rates", "final_rates", "rate", "whole_epochs", "batches", "first_batch_s", "epoch_s", "wait_shares"),
    *("turn_s", "endless", "memory_bytes", "failure", "over_limit"),
)

BETTER = 1.03  # speed-up in a race from which on a candidate gets final rounds


@dataclass
class Candidate:
    """Candidate settings and their turns; all figures follow from these."""

    name: str  # the settings in words; `BASELINE` for the loader's own
    changes: dict[str, Any] = field(default_factory=dict)  # other settings than the baseline's
    kind: str = ""  # group of the changed setting, such as ``workers`` or ``prefetch``
    failure: Finding | None = None  # why the candidate cannot be chosen
    over_limit: Finding | None = None  # the limit that the baseline exceeds; it is measured all the same
    eliminated: int | None = None  # round of the race after which it was eliminated
    make: Callable[[], Iterable[Any]] | None = field(default=None, repr=False, compare=False)  # where it is
    # not the user's own loader with other settings
    race: list[Record] = field(default_factory=list, repr=False, compare=False)
    final: list[Record] = field(default_factory=list, repr=False, compare=False)
    turns: list[Turn] = field(default_factory=list, repr=False, compare=False)  # all, in order of time

    @property
    def rates(self) -> dict[int, float]:
        """Samples/s by round of the race."""
        return {one.round: one.samples_per_s for one in self.race}

    @property
    def final_rates(self) -> dict[int, float]:
        """Samples/s by final round."""
        return {one.round: one.samples_per_s for one in self.final}

    @property
    def rate(self) -> float:
        """Median samples/s of the final rounds, else of the race; 0 without any."""
        rates = self.final_rates or self.rates
        return statistics.median(rates.values()) if rates else 0.0

    @property
    def race_rate(self) -> float:
        """Median samples/s of the race, which alone compares with others' of the race; 0 without any."""
        return statistics.median(self.rates.values()) if self.rates else 0.0

    @property
    def whole_epochs(self) -> bool:
        """True if every final round was a whole epoch."""
        return all(one.timing.partial is None for one in self.final)

    @property
    def first_batch_s(self) -> list[float]:
        """Seconds of each round to its first batch."""
        return [one.timing.first_batch_s for one in (*self.race, *self.final)]

    @property
    def epoch_s(self) -> list[float]:
        """Seconds of a whole epoch in each round."""
        return [one.epoch_s for one in (*self.race, *self.final)]

    @property
    def wait_shares(self) -> list[float]:
        """Share of each final round that the step spent waiting."""
        return [one.timing.wait_s / one.timing.epochs_s for one in self.final]

    @property
    def batches(self) -> int:
        """Batches of the last turn."""
        return self.turns[-1].batches if self.turns else 0

    @property
    def turn_s(self) -> float:
        """Wall time of the last turn, in seconds."""
        return self.turns[-1].wall_s if self.turns else 0.0

    @property
    def endless(self) -> bool:
        """True if a turn was cut off and the loader has no length."""
        return any(not one.complete and one.epoch_batches is None for one in self.turns)

    @property
    def memory_bytes(self) -> int | None:
        """Peak memory of all its processes; None if the kernel reports none."""
        return max((one.measured.memory.peak_bytes or 0 for one in self.turns), default=0) or None

    def as_dict(self) -> dict[str, Any]:
        """Return the settings and the figures, for JSON."""
        return {name: getattr(self, name) for name in FIGURES}


def compare_to_baseline(candidates: Sequence[Candidate]) -> dict[str, Comparison]:
    """Compare each candidate with the first, the baseline, round by round over their final rounds.

    One round decides nothing: a collection of a large heap may fall into it.
    """
    baseline, others = candidates[0].final_rates, [one for one in candidates[1:] if not one.failure]
    final = [one for one in others if one.final_rates and baseline]
    return {one.name: _compared(one.final_rates, baseline, len(final)) for one in final}


def _compared(rates: Mapping[int, float], baseline: Mapping[int, float], comparisons: int) -> Comparison:
    if min(len(rates), len(baseline)) < ranking.FEWEST_ROUNDS:
        return stats.compare_paired(rates, baseline, comparisons=comparisons)
    return ranking.compared(rates, baseline, comparisons)


def slowdown(turns: Sequence[tuple[Candidate, Record]]) -> float | None:
    """Return the ratio of the first turns' rates to the last ones' if rates fall from turn to turn.

    Each rate is taken relative to its candidate's median. None where there is no such trend.
    """
    usual = {candidate.name: candidate.rate for candidate, _ in turns}
    shares = [turn.samples_per_s / usual[one.name] for one, turn in turns if usual[one.name]]
    if len(shares) < 2 * stats.ENOUGH_ROUNDS:
        return None
    slope, chance = stats.trend(shares)
    third = max(1, len(shares) // 3)
    ratio = statistics.median(shares[:third]) / statistics.median(shares[-third:])
    return ratio if slope < -0.2 and chance < 0.001 and ratio > 1.5 else None
