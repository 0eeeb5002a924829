"""Settings that were tried, and what came of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from iobench.results import stats
from iobench.results.stats import Comparison

BASELINE = "as it is"
HEADROOM = "batches already on the device"


@dataclass
class Candidate:
    """Settings, and what came of them.

    `rates` are samples/s by round of the race, `fresh` those of the rounds after it; `whole` says that
    all of these were whole epochs. `make` is given where it is no loader of theirs.
    """

    name: str
    changes: dict[str, Any] = field(default_factory=dict)
    kind: str = ""  # of what is changed
    rates: dict[int, float] = field(default_factory=dict)
    fresh: dict[int, float] = field(default_factory=dict)
    whole: bool = True
    batches: int = 0  # of an epoch, or as many of it as were asked for
    first_batch_s: list[float] = field(default_factory=list)
    epoch_s: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)  # the part of each fresh turn that nothing came in
    took_s: float = 0.0  # the last turn
    unending: bool = False  # a turn was cut off, of batches that nobody can count
    memory_bytes: int | None = None  # the most of all its processes
    failed: str | None = None
    unfit: str | None = None  # why the loader as it is, which is measured all the same, is none to choose
    dropped: int | None = None  # out of the race, after so many rounds
    make: Callable[[], Iterable[Any]] | None = field(default=None, repr=False, compare=False)

    @property
    def rate(self) -> float:
        """The median of the fresh rounds, or of the race; 0 where there was none."""
        rates = self.fresh or self.rates
        return statistics.median(rates.values()) if rates else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        plain = {name: value for name, value in asdict(replace(self, make=None)).items() if name != "make"}
        return {**plain, "rate": self.rate}


def compared(candidates: Sequence[Candidate]) -> dict[str, Comparison]:
    """Each candidate but the first against the first, from the fresh rounds that they took turns in."""
    base, others = candidates[0], [candidate for candidate in candidates[1:] if candidate.fresh and not candidate.failed]
    if not base.fresh:
        return {}
    return {one.name: stats.compare_paired(one.fresh, base.fresh, comparisons=len(others)) for one in others}


def slowing(turns: Sequence[tuple[Candidate, float]]) -> float | None:
    """How many times as fast the first turns were as the last, where each was slower than those before it.

    None where they were not, by the rates of all turns, each as a part of its candidate's median.
    """
    usual = {candidate.name: candidate.rate for candidate, _ in turns}
    shares = [rate / usual[candidate.name] for candidate, rate in turns if usual[candidate.name]]
    if len(shares) < 2 * stats.ENOUGH:
        return None
    slope, chance = stats.trend(shares)
    third = max(1, len(shares) // 3)
    ratio = statistics.median(shares[:third]) / statistics.median(shares[-third:])
    return ratio if slope < -0.2 and chance < 0.001 and ratio > 1.5 else None
