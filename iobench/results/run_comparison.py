"""Comparison of one case in two sides of runs.

Rounds of a run are not independent: they share disturbances that last for seconds. The bootstrap interval of
the ratio of medians is therefore widened by sqrt((1 + r) / (1 - r)) for a correlation r of each round with
the next (Bartlett 1946). With 15 rounds and r = 0.6 this interval covered the true ratio in 89 % of trials;
blocks of rounds (Künsch 1989) in 81 %, single rounds in 75 %. Of 40 pairs of runs on a busy machine, and 40
more with a loader slowed by a tenth, 2 got a wrong outcome with it, 7 without.

The variance between runs exceeds the variance within one (Kalibera and Jones, "Rigorous benchmarking in
reasonable time", 2013). Where a side has several runs, the run is the unit of repetition: the interval is
Student's over the logarithms of the runs' medians, with one variance for both sides, so that a side of a
single run can be compared with several. Two single runs do not show the variance between runs. A difference
that a change of the machine can explain is not attributed to the case. The whole interval has to exceed the
minimum difference: on a steady machine identical commands differed by up to 3 %, and by 7 % where rounds with
background load were excluded.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from iobench.base.finding import Finding
from iobench.results import stats
from iobench.results.cases import by_run
from iobench.results.machine_change import MachineChange, Rounds, bounds, is_quiet, machine_change
from iobench.results.record import Record
from iobench.results.stats import ENOUGH_ROUNDS, Comparison, Estimate

MACHINE_CHANGED = "machine-changed"  # an outcome: the machine may explain the difference
MAX_CORRELATION = 0.9  # of neighboring rounds: higher values cannot be estimated from so few rounds


@dataclass(frozen=True)
class RunComparison:
    """Comparison of a case in two sides of runs.

    Where the outcome is `machine-changed`, `doubt` is why the machine may explain a difference or its
    absence: `background-load`, `limit-changed` or `cpu-speed-changed`.
    """

    comparison: Comparison
    machine: MachineChange
    doubt: Finding | None = None
    runs: tuple[int, int] = (1, 1)  # of the base and of the newer side


def compare_runs(base: Rounds, new: Rounds, min_difference: float, comparisons: int = 1) -> RunComparison:
    """Compare the newer rounds of a case with the base's, as one of so many comparisons.

    Rounds under background load are excluded where enough rounds remain. The outcome is `machine-changed`
    where the machine may explain a difference: most rounds were under background load, or a limit of the
    machine or its CPU speed changed by as much.
    """
    machine = machine_change(base, new)
    enough = machine.quiet_rounds is None or min(machine.quiet_rounds) >= ENOUGH_ROUNDS
    used = [[one for one in _in_order(side) if is_quiet(one) or not enough] for side in (base, new)]
    runs = (len(by_run(used[0])), len(by_run(used[1])))
    base_rates, new_rates = ([one.bytes_per_s for one in side] for side in used)
    if max(runs) > 1:
        ratio = ratio_of_runs(_medians(used[0]), _medians(used[1]), comparisons)
    else:
        ratio = _widened(stats.ratio(new_rates, base_rates, comparisons), new_rates, base_rates)

    def judged(ratio: Estimate) -> Comparison:
        return stats.judge(ratio, min(map(len, used)), min_difference, whole_interval=True)

    result, speed = judged(ratio), machine.cpu_speed_ratio
    doubt = _doubt(result, machine, min_difference, busy=not enough)
    decided = doubt is None and result.outcome in ("faster", "slower")
    if decided and speed and judged(ratio.times(1 / speed)).outcome != result.outcome:
        doubt = _cpu_speed_doubt(speed)
    return RunComparison(replace(result, outcome=MACHINE_CHANGED) if doubt else result, machine, doubt, runs)


def ratio_of_runs(base: Sequence[float], new: Sequence[float], comparisons: int = 1) -> Estimate:
    """Return the ratio of the newer runs' figures to the base's, one figure per run.

    The interval is one of so many comparisons; None where neither side has two runs.
    """
    return stats.student(base, new, statistics.fmean, 1 - (1 - stats.CONFIDENCE) / comparisons)


def _doubt(result: Comparison, machine: MachineChange, min_difference: float, busy: bool) -> Finding | None:
    """Return why the machine may explain a comparison's result; None where it does not."""
    if busy and (result.outcome != "equivalent" or machine.load_differs):
        assert machine.quiet_rounds is not None  # or all rounds were quiet
        base, new = machine.quiet_rounds
        return Finding(
            "background-load",
            "most rounds were measured under background load",
            values={"quiet_rounds_base": base, "quiet_rounds_new": new},
        )
    if result.outcome == "inconclusive" or not machine.limit_changed:
        return None
    if not _limit_explains(machine, result, min_difference):
        return None
    assert machine.limit_ratio is not None  # as it changed
    assert machine.limit is not None
    ratio = machine.limit_ratio.median
    return Finding(
        "limit-changed",
        f"the machine's own {machine.limit} limit changed as well ({ratio:.2f} ×)",
        values={"limit": machine.limit, "limit_ratio": ratio},
    )


def _cpu_speed_doubt(ratio: float) -> Finding:
    return Finding(
        "cpu-speed-changed",
        f"the processors ran {ratio:.2f} × as fast during the newer rounds, which may explain the difference",
        values={"cpu_speed_ratio": ratio},
    )


def _limit_explains(machine: MachineChange, result: Comparison, min_difference: float) -> bool:
    """Return whether the case may be unchanged relative to the machine's limit."""
    assert machine.limit_ratio is not None  # as it changed
    (low, high), (limit_low, limit_high) = bounds(result.ratio), bounds(machine.limit_ratio)
    if result.outcome == "slower":
        return high / limit_low >= 1 - min_difference
    if result.outcome == "faster":
        return low / limit_high <= 1 + min_difference
    return True  # the same speed on a changed machine


def _medians(rounds: Rounds) -> list[float]:
    """Return the median rate of each run."""
    return [statistics.median(one.bytes_per_s for one in own) for own in by_run(rounds).values()]


def _in_order(rounds: Rounds) -> list[Record]:
    return sorted(rounds, key=lambda one: (one.time, one.round))


def _widened(ratio: Estimate, *sides: Sequence[float]) -> Estimate:
    """Return the ratio, its interval widened on a logarithmic scale for correlated rounds."""
    if ratio.low is None or ratio.high is None:
        return ratio
    correlation = min(MAX_CORRELATION, max(0.0, statistics.fmean(map(_autocorrelation, sides))))
    factor = math.sqrt((1 + correlation) / (1 - correlation))
    return Estimate(
        ratio.median,
        ratio.median * (min(ratio.low, ratio.median) / ratio.median) ** factor,
        ratio.median * (max(ratio.high, ratio.median) / ratio.median) ** factor,
    )


def _autocorrelation(rates: Sequence[float]) -> float:
    """Return the correlation of each round with the next, corrected for the bias of few values."""
    mean = statistics.fmean(rates)
    deviations = [rate - mean for rate in rates]
    squares = sum(value * value for value in deviations)
    if not squares:
        return 0.0
    return sum(a * b for a, b in pairwise(deviations)) / squares + 1 / len(rates)
