"""Comparison of one case in two sides of runs, with a check that the machine stayed the same.

Rounds of a run are not independent: they share disturbances that last for seconds. The bootstrap interval of
the ratio of medians is therefore widened by sqrt((1 + r) / (1 - r)) for a correlation r of each round with
the next (Bartlett 1946). With 15 rounds and r = 0.6 this interval covered the true ratio in 89 % of trials;
blocks of rounds (Künsch 1989) in 81 %, single rounds in 75 %.

The variance between runs exceeds the variance within one (Kalibera and Jones, "Rigorous benchmarking in
reasonable time", 2013). Where a side has several runs, the run is the unit of repetition: the interval is
Student's over the logarithms of the runs' medians, with one variance for both sides, so that a side of a
single run can be compared with several. Two single runs do not show the variance between runs. The machine
itself is compared, too: its limits, sampled during both runs, the background load, and the speed of plain
Python beside each round. A difference that these can explain is not attributed to the case. The whole
interval has to exceed the minimum difference: on a steady machine identical commands differed by up to 3 %,
and by 7 % where rounds with background load were excluded.

Rounds of a CPU-bound case follow the speed of the processors, by a power that is fitted within the runs
(`cpu_covariate`). Where it is significantly above zero, rates are compared at equal CPU speed. Over 20 pairs
of runs on a virtual machine whose processors changed between two speeds, ratios of identical commands then
scattered by 6 % instead of 22 %. The interval includes the uncertainty of that power.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from iobench.results import stats
from iobench.results.cpu_covariate import CpuCovariate, fit_cpu_covariate
from iobench.results.machine_change import MachineChange, Rounds, bounds, is_quiet, machine_change
from iobench.results.record import Record
from iobench.results.stats import ENOUGH_ROUNDS, Comparison, Estimate

MACHINE_CHANGED = "machine-changed"  # an outcome: the machine may explain the difference
MAX_CORRELATION = 0.9  # of neighboring rounds: higher values cannot be estimated from so few rounds

PROPORTIONAL = CpuCovariate(1.0)

Figure = Callable[[Record], float]


@dataclass(frozen=True)
class Doubt:
    """Reason why the machine may explain a difference, or its absence.

    `kind` is `background-load`, `limit-changed` or `cpu-speed-changed`; `values` are the figures behind the
    message.
    """

    kind: str
    message: str
    values: dict[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunComparison:
    """Comparison of a case in two sides of runs; `doubt` is set where the outcome is `machine-changed`."""

    comparison: Comparison
    machine: MachineChange
    doubt: Doubt | None = None
    runs: tuple[int, int] = (1, 1)  # of the base and of the newer side
    cpu_adjusted: bool = False  # whether the ratio is one at equal CPU speed


def compare_runs(base: Rounds, new: Rounds, min_difference: float, comparisons: int = 1) -> RunComparison:
    """Compare the newer rounds of a case with the base's, as one of so many comparisons.

    Rounds under background load are excluded where enough rounds remain. Where rounds follow the CPU speed,
    rates are adjusted for it. The outcome is `machine-changed` where the machine may explain a difference:
    most rounds were under background load, or a limit of the machine changed by as much.
    """
    machine = machine_change(base, new)
    enough = machine.quiet_rounds is None or min(machine.quiet_rounds) >= ENOUGH_ROUNDS
    used = [[one for one in _in_order(side) if is_quiet(one) or not enough] for side in (base, new)]
    runs = (len(_by_run(used[0])), len(_by_run(used[1])))
    covariate = fit_cpu_covariate(rounds for side in used for rounds in _by_run(side).values())

    def compared(adjustment: CpuCovariate) -> Comparison:
        base_rates, new_rates = (list(map(adjustment.rate, side)) for side in used)
        if max(runs) > 1:
            base_medians, new_medians = (_medians(side, adjustment.rate) for side in used)
            ratio = ratio_of_runs(base_medians, new_medians, comparisons)
        else:
            ratio = _widened(stats.ratio(new_rates, base_rates, comparisons), new_rates, base_rates)
        ratio = adjustment.widened(ratio, machine.cpu_speed_ratio)
        return stats.judge(ratio, min(map(len, used)), min_difference, whole_interval=True)

    adjusted = covariate.power > 0
    result = compared(covariate)
    doubt = _doubt(result, machine, min_difference, busy=not enough)
    if adjusted and doubt:  # unless the limit followed the CPU speed, too
        doubt = _doubt(result, machine.at_equal_cpu_speed, min_difference, busy=not enough)
    decided = not adjusted and result.outcome in ("faster", "slower")
    speed = machine.cpu_speed_ratio
    if doubt is None and speed and decided and compared(PROPORTIONAL).outcome != result.outcome:
        doubt = _cpu_speed_doubt(speed)
    return RunComparison(
        replace(result, outcome=MACHINE_CHANGED) if doubt else result, machine, doubt, runs, adjusted
    )


def ratio_of_runs(base: Sequence[float], new: Sequence[float], comparisons: int = 1) -> Estimate:
    """Return the ratio of the newer runs' figures to the base's, one figure per run.

    The interval is one of so many comparisons; None where neither side has two runs.
    """
    return stats.student(base, new, statistics.fmean, 1 - (1 - stats.CONFIDENCE) / comparisons)


def _doubt(result: Comparison, machine: MachineChange, min_difference: float, busy: bool) -> Doubt | None:
    """Return why the machine may explain a comparison's result; None where it does not."""
    if busy and (result.outcome != "equivalent" or machine.load_differs):
        assert machine.quiet_rounds is not None  # or all rounds were quiet
        base, new = machine.quiet_rounds
        return Doubt(
            "background-load",
            "most rounds were measured under background load",
            {"quiet_rounds_base": base, "quiet_rounds_new": new},
        )
    if result.outcome == "inconclusive" or not machine.limit_changed:
        return None
    if not _limit_explains(machine, result, min_difference):
        return None
    assert machine.limit_ratio is not None  # as it changed
    assert machine.limit is not None
    ratio = machine.limit_ratio.median
    return Doubt(
        "limit-changed",
        f"the machine's own {machine.limit} limit changed as well ({ratio:.2f} ×)",
        {"limit": machine.limit, "limit_ratio": ratio},
    )


def _cpu_speed_doubt(ratio: float) -> Doubt:
    return Doubt(
        "cpu-speed-changed",
        f"the processors ran {ratio:.2f} × as fast during the newer rounds, which may explain the difference",
        {"cpu_speed_ratio": ratio},
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


def _by_run(rounds: Rounds) -> dict[str, list[Record]]:
    runs: dict[str, list[Record]] = {}
    for record in rounds:
        runs.setdefault(record.run, []).append(record)
    return runs


def _medians(rounds: Rounds, figure: Figure) -> list[float]:
    """Return a figure's median in each run."""
    return [statistics.median(map(figure, own)) for own in _by_run(rounds).values()]


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
