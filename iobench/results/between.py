"""One case in two runs: what their rounds say, and whether the machine was the same.

Rounds of a run are not independent: they share what the machine does for seconds at a time. The bootstrap
interval of the ratio of medians is therefore stretched by what neighbouring rounds have in common, sqrt((1 +
r) / (1 - r)) for a correlation r of each round with the next (Bartlett 1946); with 15 rounds and r = 0.6 that
held the truth in 89 % of trials where blocks of rounds (Künsch 1989) did in 81 % and single rounds in 75 %.

What differs from run to run is more than what differs within one (Kalibera and Jones, "Rigorous benchmarking
in reasonable time", 2013). Where a side has several runs, the run is what is repeated: the interval is
Student's over the logarithms of the runs' medians, with one variance for both sides, so that a side of a
single run may be held against several. Two runs do not tell how much runs differ. So the machine is held
against itself, too: its own limits, looked at during both runs, what other processes did meanwhile, and how
fast a processor ran plain Python right beside each round. A difference that these can explain is none that a
case can be blamed for.
And it has to be larger than the smallest one worth naming with its whole interval: on a steady machine
identical commands differed by up to 3 %, by 7 % where rounds beside a neighbour were left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from iobench import thresholds
from iobench.results import limits, others, stats
from iobench.results.record import Record
from iobench.results.stats import ENOUGH, Comparison, Estimate

CANNOT_TELL = "cannot tell"
MOST_ALIKE = 0.9  # of a round with the next: more cannot be made out in so few rounds
UNKNOWN_SPREAD = 0.25  # of the looks at a limit, where too few tell how far they differ
LEAST_LOOKS = 4  # of both runs together, that tell it
LARGEST = 700.0  # a logarithm whose exponential is still a number

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
        low, high = _ends(self.limit_change)
        return (low > 1 or high < 1) and abs(math.log(self.limit_change.median)) > math.log1p(
            stats.WORTH_NAMING
        )

    @property
    def busier(self) -> bool:
        """Whether other processes used clearly more of the processors in one of the runs."""
        base, new = self.others
        return base is not None and new is not None and abs(new - base) > thresholds.OTHERS_PROCESSORS


@dataclass(frozen=True)
class Between:
    """Two runs of a case compared, and why nobody can tell, where nobody can."""

    comparison: Comparison
    machine: Machine
    because: str | None = None
    runs: tuple[int, int] = (1, 1)  # of the base and of the newer side


def compare_runs(base: Rounds, new: Rounds, smallest: float, comparisons: int = 1) -> Between:
    """The newer run of a case against the base, as one of so many comparisons.

    Rounds beside which others were at work are left out where enough remain. The outcome is `cannot tell`
    where a difference may be the machine's: others were at work in too many rounds, or its own limit
    changed by as much.
    """
    machine = _machine(base, new)
    enough = machine.quiet is None or min(machine.quiet) >= ENOUGH
    kept = [[record for record in _in_order(side) if _is_quiet(record) or not enough] for side in (base, new)]
    runs = (_count(kept[0]), _count(kept[1]))

    def judged(figure: Callable[[Record], float]) -> Comparison:
        olds, news = (list(map(figure, side)) for side in kept)
        if max(runs) > 1:
            ratio = over_runs(_medians(kept[0], figure), _medians(kept[1], figure), comparisons)
        else:
            ratio = _stretched(stats.ratio(news, olds, comparisons), news, olds)
        return stats.judge(ratio, min(map(len, kept)), smallest, whole=True)

    found = judged(lambda record: record.bytes_per_s)
    because = _doubt(found, machine, smallest, busy=not enough)
    if because is None and machine.pace_change and found.outcome in ("faster", "slower"):
        held = judged(lambda record: record.bytes_per_s / (record.processor.pace_per_s or 1.0))
        if held.outcome != found.outcome:
            because = (
                f"processors ran {machine.pace_change:.2f} × as fast beside the newer rounds; held against "
                "that, the case may be as it was"
            )
    return Between(replace(found, outcome=CANNOT_TELL) if because else found, machine, because, runs)


def over_runs(base: Sequence[float], new: Sequence[float], comparisons: int = 1) -> Estimate:
    """The newer runs' figure over the base's, one of each run, as one of so many comparisons.

    No interval where neither side has two runs.
    """
    return _student(base, new, statistics.fmean, 1 - (1 - stats.CONFIDENCE) / comparisons)


def _doubt(found: Comparison, machine: Machine, smallest: float, busy: bool) -> str | None:
    """Why a difference, or that there is none, may be the machine's doing."""
    if busy and (found.outcome != "equivalent" or machine.busier):
        return "other processes were at work in most rounds"
    if found.outcome != "inconclusive" and machine.changed and _explains(machine, found, smallest):
        return f"what the machine's own {machine.limit} gives changed, too"
    return None


def _pace_change(base: Rounds, new: Rounds) -> float | None:
    """How many times as fast processors ran beside the newer rounds; None where some do not tell."""
    sides = [[record.processor.pace_per_s for record in side] for side in (base, new)]
    olds, news = ([pace for pace in side if pace] for side in sides)
    if len(olds) + len(news) < len(base) + len(new):
        return None
    return statistics.median(news) / statistics.median(olds)


def _explains(machine: Machine, found: Comparison, smallest: float) -> bool:
    """Whether the case, held against what the machine gave, may be as it was."""
    assert machine.limit_change is not None  # or it would not have changed
    (low, high), (least, most) = _ends(found.ratio), _ends(machine.limit_change)
    if found.outcome == "slower":
        return high / least >= 1 - smallest
    if found.outcome == "faster":
        return low / most <= 1 + smallest
    return True  # as fast as before on a machine that is not


def _machine(base: Rounds, new: Rounds) -> Machine:
    quiet = (sum(map(_is_quiet, base)), sum(map(_is_quiet, new)))
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
        return _student(base, new, statistics.median, stats.CONFIDENCE)
    centre = math.log(statistics.median(new) / statistics.median(base))
    reach = 1.96 * UNKNOWN_SPREAD * math.sqrt(1 / len(base) + 1 / len(new))
    return Estimate(math.exp(centre), math.exp(centre - reach), math.exp(centre + reach))


def _student(
    base: Sequence[float],
    new: Sequence[float],
    middle: Callable[[Sequence[float]], float],
    confidence: float,
) -> Estimate:
    """What two sides differ by as a ratio, with Student's interval over logarithms of one variance."""
    from scipy.stats import t

    olds, news = ([math.log(value) for value in side] for side in (base, new))
    centre, freedom = middle(news) - middle(olds), len(olds) + len(news) - 2
    if not freedom:
        return Estimate(math.exp(centre), None, None)
    squares = sum((value - statistics.fmean(side)) ** 2 for side in (olds, news) for value in side)
    spread = math.sqrt(squares / freedom * (1 / len(olds) + 1 / len(news)))
    reach = float(t.ppf((1 + confidence) / 2, freedom)) * spread
    return Estimate(math.exp(centre), math.exp(centre - reach), math.exp(min(centre + reach, LARGEST)))


def _by_run(rounds: Rounds) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in rounds:
        found.setdefault(record.run, []).append(record)
    return found


def _count(rounds: Rounds) -> int:
    return len(_by_run(rounds))


def _medians(rounds: Rounds, figure: Callable[[Record], float]) -> list[float]:
    """A figure's median in each run."""
    return [statistics.median(map(figure, own)) for own in _by_run(rounds).values()]


def _is_quiet(record: Record) -> bool:
    return record.others is None or not any(sign.is_seen(record.others) for sign in others.SIGNS)


def _others(rounds: Rounds) -> float | None:
    shares = [record.others.processors for record in rounds if record.others]
    known = [share for share in shares if share is not None]
    return statistics.median(known) if known else None


def _in_order(rounds: Rounds) -> list[Record]:
    return sorted(rounds, key=lambda one: (one.time, one.round))


def _ends(estimate: Estimate) -> tuple[float, float]:
    """Its interval, or all there is without one."""
    return estimate.low or 0.0, math.inf if estimate.high is None else estimate.high


def _stretched(ratio: Estimate, *sides: Sequence[float]) -> Estimate:
    """The same with an interval for rounds that resemble their neighbours, on a logarithmic scale."""
    if ratio.low is None or ratio.high is None:
        return ratio
    alike = min(MOST_ALIKE, max(0.0, statistics.fmean(map(_alike, sides))))
    by = math.sqrt((1 + alike) / (1 - alike))
    return Estimate(
        ratio.median,
        ratio.median * (min(ratio.low, ratio.median) / ratio.median) ** by,
        ratio.median * (max(ratio.high, ratio.median) / ratio.median) ** by,
    )


def _alike(rates: Sequence[float]) -> float:
    """The correlation of each round with the next; what so few values make it too small by is added."""
    mean = statistics.fmean(rates)
    away = [rate - mean for rate in rates]
    squares = sum(value * value for value in away)
    if not squares:
        return 0.0
    return sum(a * b for a, b in pairwise(away)) / squares + 1 / len(rates)
