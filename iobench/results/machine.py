"""How the machine itself differed between two runs: its limits, its processors' speed, other work."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from iobench.base import thresholds
from iobench.results import limits, others, stats
from iobench.results.record import Record
from iobench.results.stats import Estimate

UNKNOWN_SPREAD = 0.25  # of the looks at a limit, where too few tell how far they differ
LEAST_LOOKS = 4  # of both runs together, that tell it

Rounds = Sequence[Record]


@dataclass(frozen=True)
class Machine:
    """How the machine differed between two runs; None where their records do not tell."""

    redefined: str | None = None  # a limit that the two measured in different ways, and is not compared
    limit: str | None = None  # the resource that the case runs into
    limit_change: Estimate | None = None  # what it gave in the newer run over what it gave in the base
    pace_change: float | None = None  # how many times as fast processors ran plain Python in the newer run
    others: tuple[float | None, float | None] = (None, None)  # medians of the processors' time they used
    quiet: tuple[int, int] | None = None  # rounds without other work, where that is not all of them

    @property
    def changed(self) -> bool:
        """Whether its limit surely changed by as much as is called a difference."""
        if self.limit_change is None:
            return False
        low, high = ends_of(self.limit_change)
        return (low > 1 or high < 1) and abs(math.log(self.limit_change.median)) > math.log1p(
            stats.WORTH_NAMING
        )

    @property
    def at_one_pace(self) -> Machine:
        """The same, its limit held against how fast processors ran, as the case is."""
        if self.limit_change is None or self.pace_change is None:
            return self
        found = (self.limit_change.median, *ends_of(self.limit_change))
        return replace(self, limit_change=Estimate(*(value / self.pace_change for value in found)))

    @property
    def busier(self) -> bool:
        """Whether other processes used clearly more of the processors in one of the runs."""
        base, new = self.others
        return base is not None and new is not None and abs(new - base) > thresholds.OTHERS_PROCESSORS


def machine_between(base: Rounds, new: Rounds) -> Machine:
    """What two runs of a case, by their records, say of the machine."""
    quiet = (sum(map(is_quiet, base)), sum(map(is_quiet, new)))
    looks = [limits.looks(side) or _old_looks(side) for side in (base, new)]
    meant = limits.definitions([*base, *new])
    redefined = next((name for name, ways in meant.items() if len(ways) > 1), None)
    shared = [name for name in looks[0] if name in looks[1] and len(meant[name]) == 1]
    return Machine(
        redefined=redefined,
        limit=shared[0] if shared else None,
        limit_change=_change(looks[0][shared[0]], looks[1][shared[0]]) if shared else None,
        pace_change=_pace_change(base, new),
        others=(_others(base), _others(new)),
        quiet=None if quiet == (len(base), len(new)) else quiet,
    )


def _old_looks(rounds: Rounds) -> dict[str, list[float]]:
    """The limit of records of before looks were noted."""
    found = {record.limit.name: [record.limit.bytes_per_s] for record in rounds if record.limit}
    return found if len(found) == 1 else {}


def _change(base: Sequence[float], new: Sequence[float]) -> Estimate:
    """What looks of two runs differ by, with Student's interval from how far they differ in each."""
    if len(base) + len(new) >= LEAST_LOOKS:
        return stats.student(base, new, statistics.median, stats.CONFIDENCE)
    centre = math.log(statistics.median(new) / statistics.median(base))
    reach = 1.96 * UNKNOWN_SPREAD * math.sqrt(1 / len(base) + 1 / len(new))
    return Estimate(math.exp(centre), math.exp(centre - reach), math.exp(centre + reach))


def _pace_change(base: Rounds, new: Rounds) -> float | None:
    """How many times as fast processors ran beside the newer rounds; None where some do not tell."""
    sides = [[record.processor.pace_per_s for record in side] for side in (base, new)]
    olds, news = ([pace for pace in side if pace] for side in sides)
    if len(olds) + len(news) < len(base) + len(new):
        return None
    return statistics.median(news) / statistics.median(olds)


def is_quiet(record: Record) -> bool:
    """Whether no other work was seen beside a round."""
    return record.others is None or not any(sign.is_seen(record.others) for sign in others.SIGNS)


def _others(rounds: Rounds) -> float | None:
    shares = [record.others.processors for record in rounds if record.others]
    known = [share for share in shares if share is not None]
    return statistics.median(known) if known else None


def ends_of(estimate: Estimate) -> tuple[float, float]:
    """Its interval, or all there is without one."""
    return estimate.low or 0.0, math.inf if estimate.high is None else estimate.high
