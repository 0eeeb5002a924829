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
case can be blamed for. And it has to be larger than the smallest one worth naming with its whole interval: on
a steady machine identical commands differed by up to 3 %, by 7 % where rounds beside a neighbour were left
out.

Rounds of a case that processors hold up follow their pace, by a power that is found within the runs
(`following`): where it is surely above zero, rates at one pace are what is compared. Over 20 pairs of runs
on a virtual machine whose processors changed between two speeds, ratios of identical commands then
scattered by 6 %, instead of by 22 %. What that power may differ by from run to run is in the interval, as
far as the pace differs between them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from iobench.results import stats
from iobench.results.following import Following, following
from iobench.results.machine import Machine, Rounds, ends_of, is_quiet, machine_between
from iobench.results.record import Record
from iobench.results.stats import ENOUGH, Comparison, Estimate

CANNOT_TELL = "cannot tell"
MOST_ALIKE = 0.9  # of a round with the next: more cannot be made out in so few rounds

IN_PROPORTION = Following(1.0)  # to the pace of processors

Figure = Callable[[Record], float]


@dataclass(frozen=True)
class Between:
    """Two runs of a case compared, and why nobody can tell, where nobody can."""

    comparison: Comparison
    machine: Machine
    because: str | None = None
    runs: tuple[int, int] = (1, 1)  # of the base and of the newer side
    paced: bool = False  # whether the ratio is of rates held against the processors' pace beside them


def compare_runs(base: Rounds, new: Rounds, smallest: float, comparisons: int = 1) -> Between:
    """The newer run of a case against the base, as one of so many comparisons.

    Rounds beside which others were at work are left out where enough remain. Where rounds follow the speed of
    the processors beside them, they are held against it. The outcome is `cannot tell` where a difference
    may be the machine's: others were at work in too many rounds, or its own limit changed by as much.
    """
    machine = machine_between(base, new)
    enough = machine.quiet is None or min(machine.quiet) >= ENOUGH
    kept = [[record for record in _in_order(side) if is_quiet(record) or not enough] for side in (base, new)]
    runs = (_count(kept[0]), _count(kept[1]))
    follows = following(own for side in kept for own in _by_run(side).values())

    def judged(by: Following) -> Comparison:
        olds, news = (list(map(by.rate, side)) for side in kept)
        if max(runs) > 1:
            ratio = over_runs(_medians(kept[0], by.rate), _medians(kept[1], by.rate), comparisons)
        else:
            ratio = _stretched(stats.ratio(news, olds, comparisons), news, olds)
        ratio = by.stretched(ratio, machine.pace_change)
        return stats.judge(ratio, min(map(len, kept)), smallest, whole=True)

    paced = follows.power > 0
    found = judged(follows)
    because = _doubt(found, machine, smallest, busy=not enough)
    if paced and because:  # unless its limit, too, followed the processors
        because = _doubt(found, machine.at_one_pace, smallest, busy=not enough)
    told = not paced and found.outcome in ("faster", "slower")
    if because is None and machine.pace_change and told and judged(IN_PROPORTION).outcome != found.outcome:
        because = (
            f"processors ran {machine.pace_change:.2f} × as fast beside the newer rounds; held against "
            "that, the case may be as it was"
        )
    return Between(replace(found, outcome=CANNOT_TELL) if because else found, machine, because, runs, paced)


def over_runs(base: Sequence[float], new: Sequence[float], comparisons: int = 1) -> Estimate:
    """The newer runs' figure over the base's, one of each run, as one of so many comparisons.

    No interval where neither side has two runs.
    """
    return stats.student(base, new, statistics.fmean, 1 - (1 - stats.CONFIDENCE) / comparisons)


def _doubt(found: Comparison, machine: Machine, smallest: float, busy: bool) -> str | None:
    """Why a difference, or that there is none, may be the machine's doing."""
    if busy and (found.outcome != "equivalent" or machine.busier):
        return "other processes were at work in most rounds"
    if found.outcome != "inconclusive" and machine.changed and _explains(machine, found, smallest):
        return f"what the machine's own {machine.limit} gives changed, too"
    return None


def _explains(machine: Machine, found: Comparison, smallest: float) -> bool:
    """Whether the case, held against what the machine gave, may be as it was."""
    assert machine.limit_change is not None  # or it would not have changed
    (low, high), (least, most) = ends_of(found.ratio), ends_of(machine.limit_change)
    if found.outcome == "slower":
        return high / least >= 1 - smallest
    if found.outcome == "faster":
        return low / most <= 1 + smallest
    return True  # as fast as before on a machine that is not


def _by_run(rounds: Rounds) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in rounds:
        found.setdefault(record.run, []).append(record)
    return found


def _count(rounds: Rounds) -> int:
    return len(_by_run(rounds))


def _medians(rounds: Rounds, figure: Figure) -> list[float]:
    """A figure's median in each run."""
    return [statistics.median(map(figure, own)) for own in _by_run(rounds).values()]


def _in_order(rounds: Rounds) -> list[Record]:
    return sorted(rounds, key=lambda one: (one.time, one.round))


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
