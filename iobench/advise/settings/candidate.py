"""Candidate settings of a loader and their measurements."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from iobench.base.finding import Finding
from iobench.results import stats
from iobench.results.record import Record
from iobench.results.stats import Comparison

BASELINE = "baseline"  # the loader with the settings it came with
HEADROOM = "batches already on the device"


@dataclass
class Candidate:
    """Candidate settings and their measurements.

    Attributes
    ----------
    name : str
        The settings in words; `BASELINE` for the loader's own.
    changes : dict
        Settings that differ from the baseline, by argument name.
    kind : str
        Group of the changed setting, such as ``workers`` or ``prefetch``.
    rates, final_rates : dict of int to float
        Samples/s by round number, of the race and of the final rounds.
    whole_epochs : bool
        True while every final round was a whole epoch.
    batches : int
        Batches of the last turn's epoch, or the part of them that was measured.
    first_batch_s, epoch_s : list of float
        Seconds of each turn to its first batch, and of a whole epoch.
    wait_shares : list of float
        Share of each final turn that the step spent waiting.
    turn_s : float
        Wall time of the last turn, in seconds.
    endless : bool
        A turn was cut off and the loader has no length.
    memory_bytes : int or None
        Peak memory of all its processes; None if the kernel reports none.
    failure : Finding or None
        Why the candidate cannot be chosen.
    over_limit : Finding or None
        The limit that the baseline exceeds; it is measured all the same.
    eliminated : int or None
        Round of the race after which it was eliminated.
    make : callable or None
        Builds the loader where it is not the user's own loader with other settings.
    """

    name: str
    changes: dict[str, Any] = field(default_factory=dict)
    kind: str = ""
    rates: dict[int, float] = field(default_factory=dict)
    final_rates: dict[int, float] = field(default_factory=dict)
    whole_epochs: bool = True
    batches: int = 0
    first_batch_s: list[float] = field(default_factory=list)
    epoch_s: list[float] = field(default_factory=list)
    wait_shares: list[float] = field(default_factory=list)
    turn_s: float = 0.0
    endless: bool = False
    memory_bytes: int | None = None
    failure: Finding | None = None
    over_limit: Finding | None = None
    eliminated: int | None = None
    make: Callable[[], Iterable[Any]] | None = field(default=None, repr=False, compare=False)

    @property
    def rate(self) -> float:
        """Median samples/s of the final rounds, else of the race; 0 without any."""
        rates = self.final_rates or self.rates
        return statistics.median(rates.values()) if rates else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the fields and the rate, for JSON."""
        plain = {name: value for name, value in asdict(replace(self, make=None)).items() if name != "make"}
        return {**plain, "rate": self.rate}


def compare_to_baseline(candidates: Sequence[Candidate]) -> dict[str, Comparison]:
    """Compare each candidate with the first, the baseline, round by round over their final rounds."""
    baseline, others = candidates[0], [one for one in candidates[1:] if one.final_rates and not one.failure]
    if not baseline.final_rates:
        return {}
    return {
        one.name: stats.compare_paired(one.final_rates, baseline.final_rates, comparisons=len(others))
        for one in others
    }


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
