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
that a change of the machine can explain is not attributed to the case; background load that is alike on both
sides is no change. The whole interval has to exceed the minimum difference: on a steady machine identical
commands differed by up to 3 %, and by 7 % where rounds with background load were excluded.

Two cases of one run whose rounds were taken in turns share the machine's state round by round: they are
compared in pairs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from iobench.base.finding import Finding
from iobench.results import cases, stats
from iobench.results.cases import by_run
from iobench.results.record import Record, Rounds
from iobench.results.run_warning import BACKGROUND_CPU, BACKGROUND_SIGNS, BackgroundSign
from iobench.results.stats import ENOUGH_ROUNDS, Comparison, Estimate

MACHINE_CHANGED = "machine-changed"  # an outcome: the machine may explain the difference
MAX_CORRELATION = 0.9  # of neighboring rounds: higher values cannot be estimated from so few rounds
UNKNOWN_SPREAD = 0.25  # assumed spread of a limit's samples where there are too few to measure it
MIN_LIMIT_SAMPLES = 4  # of both runs together, from which on the spread is measured


@dataclass(frozen=True)
class RunComparison:
    """Comparison of a case in two sides of runs.

    The two rates are those whose ratio is judged. Where rounds under background load were left out,
    `plain_ratio` is the ratio with them. Where the outcome is `machine-changed`, `doubt` is why the machine
    may explain a difference or its absence: `background-load`, `limit-changed` or `cpu-speed-changed`.
    """

    comparison: Comparison
    base_rate: Estimate  # bytes/s; samples/s of rounds taken in turns
    new_rate: Estimate
    machine: MachineChange
    doubt: Finding | None = None
    runs: tuple[int, int] = (1, 1)  # of the base and of the newer side
    plain_ratio: float | None = None


def compare_runs(
    base: Rounds, new: Rounds, min_difference: float, comparisons: int = 1, in_turns: bool = False
) -> RunComparison:
    """Return the comparison of a case's newer rounds with the base's, as one of so many comparisons.

    Where background load differs between the sides, rounds under it are left out, if enough others remain.
    The outcome is `machine-changed` where the machine may explain a difference: load differs and most rounds
    were under it, or a limit of the machine or its CPU speed changed by as much. Rounds that were taken
    `in_turns`, in one run, are compared in pairs.
    """
    machine = machine_change(base, new)
    if in_turns:
        rates = [{one.round: one.samples_per_s for one in side} for side in (base, new)]
        paired = stats.compare_paired(rates[1], rates[0], min_difference, comparisons)
        before, after = (stats.estimate(list(each.values())) for each in rates)
        return RunComparison(paired, before, after, machine)
    enough = machine.quiet_rounds is None or min(machine.quiet_rounds) >= ENOUGH_ROUNDS
    left_out = machine.load_differs and enough
    in_order = [sorted(side, key=lambda one: (one.time, one.round)) for side in (base, new)]
    used = [[one for one in side if is_quiet(one) or not left_out] for side in in_order]
    runs = (len(by_run(used[0])), len(by_run(used[1])))
    ratio, before, after = _ratio_of_sides(used[0], used[1], comparisons)

    def judged(ratio: Estimate) -> Comparison:
        return stats.judge(ratio, min(map(len, used)), min_difference, whole_interval=True)

    result, cpu_speed = judged(ratio), machine.cpu_speed_ratio
    doubt = _doubt(result, machine, min_difference, busy=machine.load_differs and not enough)
    decided = doubt is None and result.outcome in ("faster", "slower")
    if decided and cpu_speed and judged(ratio.times(1 / cpu_speed)).outcome != result.outcome:
        doubt = Finding(
            "cpu-speed-changed",
            f"the processors ran {cpu_speed:.2f} × as fast during the newer rounds, which may explain the "
            "difference",
            values={"cpu_speed_ratio": cpu_speed},
        )
    plain = _ratio_of_sides(base, new, comparisons)[0].median if left_out else None
    outcome = replace(result, outcome=MACHINE_CHANGED) if doubt else result
    return RunComparison(outcome, before, after, machine, doubt, runs, plain)


def _ratio_of_sides(base: Rounds, new: Rounds, comparisons: int) -> tuple[Estimate, Estimate, Estimate]:
    """Return the ratio of new to base, and the speeds of base and new in bytes/s."""
    runs = [[[one.bytes_per_s for one in rounds] for rounds in by_run(side).values()] for side in (base, new)]
    before, after = (list(map(statistics.median, side)) for side in runs)
    if max(len(before), len(after)) > 1:
        speeds = [Estimate(statistics.geometric_mean(each)) for each in (before, after)]
        return stats.student(before, after, comparisons), speeds[0], speeds[1]
    (before,), (after,) = runs
    ratio = _widened(stats.ratio(after, before, comparisons), after, before)
    return ratio, stats.estimate(before), stats.estimate(after)


def _doubt(result: Comparison, machine: MachineChange, min_difference: float, busy: bool) -> Finding | None:
    """Return why the machine may explain a comparison's result; None where it does not."""
    if busy:
        assert machine.quiet_rounds is not None  # or all rounds were quiet
        base, new = machine.quiet_rounds
        return Finding(
            "background-load",
            "most rounds were measured under background load",
            values={"quiet_rounds_base": base, "quiet_rounds_new": new},
        )
    if result.outcome == "inconclusive" or not machine.limit_changed:
        return None
    assert machine.limit_ratio is not None  # as it changed
    assert machine.limit is not None
    (low, high), (limit_low, limit_high) = bounds(result.ratio), bounds(machine.limit_ratio)
    # a case that is still slower, or faster, relative to the limit is not explained by it
    if result.outcome == "slower" and high / limit_low < 1 - min_difference:
        return None
    if result.outcome == "faster" and low / limit_high > 1 + min_difference:
        return None
    ratio = machine.limit_ratio.median
    return Finding(
        "limit-changed",
        f"the machine's own {machine.limit} limit changed as well ({ratio:.2f} ×)",
        values={"limit": machine.limit, "limit_ratio": ratio},
    )


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


@dataclass(frozen=True)
class MachineChange:
    """Differences of the machine between two runs of a case, new over base; None where unknown."""

    limit: str | None = None  # the resource that limits the case
    limit_ratio: Estimate | None = None  # its rate in the newer run over that in the base
    cpu_speed_ratio: float | None = None  # of plain Python beside the newer rounds over the base's
    background_cpu: tuple[float | None, float | None] = (None, None)  # of base and newer run:
    # mean share of CPU time used by other processes
    load_differs: bool = False  # a figure of background load differs by more than its threshold
    quiet_rounds: tuple[int, int] | None = None  # without background load, of base and newer; None: all

    @property
    def limit_changed(self) -> bool:
        """True if the limit changed significantly and by at least the minimum difference."""
        if self.limit_ratio is None:
            return False
        low, high = bounds(self.limit_ratio)
        large = abs(math.log(self.limit_ratio.median)) > math.log1p(stats.MIN_DIFFERENCE)
        return (low > 1 or high < 1) and large


def machine_change(base: Rounds, new: Rounds) -> MachineChange:
    """Return how the machine changed between two runs of a case, from their records."""
    quiet = (sum(map(is_quiet, base)), sum(map(is_quiet, new)))
    base_rates, new_rates = cases.measured_rates(base), cases.measured_rates(new)
    name = next((name for name in base_rates if name in new_rates), None)
    loads = {sign: (_mean_load(sign, base), _mean_load(sign, new)) for sign in BACKGROUND_SIGNS}
    differ = (abs((after or 0) - (before or 0)) > sign.threshold for sign, (before, after) in loads.items())
    return MachineChange(
        limit=name,
        limit_ratio=None if name is None else _ratio(base_rates[name], new_rates[name]),
        cpu_speed_ratio=_cpu_speed_ratio(base, new),
        background_cpu=loads[BACKGROUND_CPU],
        load_differs=any(differ),
        quiet_rounds=None if quiet == (len(base), len(new)) else quiet,
    )


def _ratio(base: Sequence[float], new: Sequence[float]) -> Estimate:
    """Return the ratio of two runs' samples of a limit, with Student's interval over their spread."""
    if len(base) + len(new) >= MIN_LIMIT_SAMPLES:
        return stats.student(base, new, middle=statistics.median)
    centre = math.log(statistics.median(new) / statistics.median(base))
    reach = 1.96 * UNKNOWN_SPREAD * math.sqrt(1 / len(base) + 1 / len(new))
    return Estimate(math.exp(centre), math.exp(centre - reach), math.exp(centre + reach))


def _cpu_speed_ratio(base: Rounds, new: Rounds) -> float | None:
    """Return the ratio of the median CPU speeds; None where any round lacks its speed."""
    base_speeds, new_speeds = (
        [speed for record in side if (speed := record.processor.cpu_speed_per_s)] for side in (base, new)
    )
    if len(base_speeds) + len(new_speeds) < len(base) + len(new):
        return None
    return statistics.median(new_speeds) / statistics.median(base_speeds)


def is_quiet(record: Record) -> bool:
    """Return whether no sign of background load was present during a round."""
    part = record.background
    return part is None or not any(sign.is_present(part) for sign in BACKGROUND_SIGNS)


def _mean_load(sign: BackgroundSign, rounds: Rounds) -> float | None:
    known = [value for one in rounds if one.background and (value := sign.figure(one.background)) is not None]
    return statistics.fmean(known) if known else None


def bounds(estimate: Estimate) -> tuple[float, float]:
    """Return the ends of an interval: 0 and infinity where there is none."""
    return estimate.low or 0.0, math.inf if estimate.high is None else estimate.high
