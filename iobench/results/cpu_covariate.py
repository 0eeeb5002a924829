"""CPU speed as a covariate: how closely a case's rounds follow the speed of the processors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from iobench.results.record import Record
from iobench.results.stats import Estimate

MIN_ROUNDS = 5  # of all runs together, for a fit
SIGNIFICANT = 2.0  # standard errors
# Difference of the power from run to run, over 40 pairs of runs of one command: a machine whose processors
# run at another speed differs in other ways, too.
RUN_TO_RUN_ERROR = 0.2


@dataclass(frozen=True)
class CpuCovariate:
    """The power of CPU speed that rates follow (1 in proportion, 0 not at all) and its standard error."""

    power: float = 0.0
    error: float = 0.0

    def rate(self, record: Record) -> float:
        """Return a round's bytes per second, adjusted to one CPU speed."""
        return record.bytes_per_s / float((record.processor.cpu_speed_per_s or 1.0) ** self.power)

    def widened(self, ratio: Estimate, cpu_speed_ratio: float | None) -> Estimate:
        """Return an adjusted ratio of two runs, its interval widened by the power's uncertainty."""
        if not self.power or not cpu_speed_ratio or ratio.low is None or ratio.high is None:
            return ratio
        unknown = 1.96 * math.hypot(self.error, RUN_TO_RUN_ERROR) * math.log(cpu_speed_ratio)
        low, high = (math.hypot(math.log(end / ratio.median), unknown) for end in (ratio.low, ratio.high))
        return Estimate(ratio.median, ratio.median * math.exp(-low), ratio.median * math.exp(high))


def fit_cpu_covariate(runs: Iterable[Sequence[Record]]) -> CpuCovariate:
    """Fit the power of CPU speed within runs; 0 where it is not significant or speeds are unknown.

    This is the coefficient of a control variate (Lavenberg and Welch, "A perspective on the use of control
    variables", 1981) on logarithms. Differences between runs are excluded, so that it favors no outcome.
    """
    speeds: list[float] = []
    rates: list[float] = []
    lost_freedom = 1
    for rounds in runs:
        known = [one.processor.cpu_speed_per_s for one in rounds if one.processor.cpu_speed_per_s]
        if len(known) < len(rounds):
            return CpuCovariate()
        speeds += _centred(known)
        rates += _centred([one.bytes_per_s for one in rounds])
        lost_freedom += 1
    squares = sum(speed * speed for speed in speeds)
    if len(speeds) < MIN_ROUNDS or not squares:
        return CpuCovariate()
    power = sum(speed * rate for speed, rate in zip(speeds, rates, strict=True)) / squares
    residual = sum((rate - power * speed) ** 2 for speed, rate in zip(speeds, rates, strict=True))
    error = math.sqrt(residual / max(1, len(speeds) - lost_freedom) / squares)
    return CpuCovariate(power, error) if power > SIGNIFICANT * error else CpuCovariate()


def _centred(values: Sequence[float]) -> list[float]:
    """Return the logarithms of the values minus their mean."""
    logs = [math.log(value) for value in values]
    mean = statistics.fmean(logs)
    return [value - mean for value in logs]
