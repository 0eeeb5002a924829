"""How closely the rounds of a case follow the pace of the processors beside them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from iobench.results.record import Record
from iobench.results.stats import Estimate

LEAST_ROUNDS = 5  # of all runs together, that tell it
SURE = 2.0  # standard errors
# What the power of one run is away from that of the next, over 40 pairs of runs of one command: a machine
# whose processors run at another speed is another machine in other ways, too.
FROM_RUN_TO_RUN = 0.2


@dataclass(frozen=True)
class Following:
    """The power of the pace that rates follow: 1 in proportion, 0 not at all; and its standard error."""

    power: float = 0.0
    error: float = 0.0

    def rate(self, record: Record) -> float:
        """A round's bytes per second at one pace of processors."""
        return record.bytes_per_s / float((record.processor.pace_per_s or 1.0) ** self.power)

    def stretched(self, ratio: Estimate, pace_change: float | None) -> Estimate:
        """A ratio of two runs at one pace, with what is not known of the power in its interval."""
        if not self.power or not pace_change or ratio.low is None or ratio.high is None:
            return ratio
        unknown = 1.96 * math.hypot(self.error, FROM_RUN_TO_RUN) * math.log(pace_change)
        low, high = (math.hypot(math.log(end / ratio.median), unknown) for end in (ratio.low, ratio.high))
        return Estimate(ratio.median, ratio.median * math.exp(-low), ratio.median * math.exp(high))


def following(runs: Iterable[Sequence[Record]]) -> Following:
    """How the rounds follow the pace within their runs; not at all where that is not sure, or not known.

    It is the coefficient of a control variate (Lavenberg and Welch, "A perspective on the use of control
    variables", 1981) on logarithms. What the runs differ by is not in it, so that it favours no outcome.
    """
    paces: list[float] = []
    rates: list[float] = []
    lost = 1  # degrees of freedom
    for own in runs:
        known = [record.processor.pace_per_s for record in own if record.processor.pace_per_s]
        if len(known) < len(own):
            return Following()
        paces += _away(known)
        rates += _away([record.bytes_per_s for record in own])
        lost += 1
    squares = sum(pace * pace for pace in paces)
    if len(paces) < LEAST_ROUNDS or not squares:
        return Following()
    power = sum(pace * rate for pace, rate in zip(paces, rates, strict=True)) / squares
    left = sum((rate - power * pace) ** 2 for pace, rate in zip(paces, rates, strict=True))
    error = math.sqrt(left / max(1, len(paces) - lost) / squares)
    return Following(power, error) if power > SURE * error else Following()


def _away(values: Sequence[float]) -> list[float]:
    """How far each lies from their mean, on a logarithmic scale."""
    logs = [math.log(value) for value in values]
    mean = statistics.fmean(logs)
    return [value - mean for value in logs]
