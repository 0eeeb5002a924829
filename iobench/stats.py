"""Pure arithmetic over rounds: medians, intervals, verdicts."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
RESAMPLES = 4999
FEWEST = 3  # rounds below which an interval says nothing
WORTH_NAMING = 0.05  # smallest difference that is called one


@dataclass(frozen=True)
class Estimate:
    """A median with its 95 % interval; no interval below three values."""

    median: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Verdict:
    """Which arm is fastest and how sure that is.

    `ratio` compares its median with the runner-up's. `outcome` is `faster` where the whole
    interval of that ratio lies above 1.05, `equivalent` where it lies within 0.95 to 1.05,
    else `inconclusive`; `single` where there is nothing to compare.
    """

    fastest: str
    runner_up: str | None
    ratio: Estimate | None
    outcome: str


def estimate(values: Sequence[float]) -> Estimate:
    """The median of the values with its bootstrap percentile interval (Efron 1979)."""
    median = statistics.median(values)
    if len(values) < FEWEST:
        return Estimate(median, None, None)
    low, high = _bootstrap((values,), _median)
    return Estimate(median, low, high)


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Estimate:
    """The ratio of the medians of two samples with its bootstrap percentile interval, unpaired."""
    centre = statistics.median(numerator) / statistics.median(denominator)
    if min(len(numerator), len(denominator)) < FEWEST:
        return Estimate(centre, None, None)
    low, high = _bootstrap((numerator, denominator), _ratio_of_medians)
    return Estimate(centre, low, high)


def verdict(rates: Mapping[str, Sequence[float]]) -> Verdict:
    """The fastest arm by median rate against the next, from each arm's rates (larger is faster)."""
    ranked = sorted(rates, key=lambda label: statistics.median(rates[label]), reverse=True)
    if len(ranked) < 2:
        return Verdict(ranked[0], None, None, "single")
    compared = ratio(rates[ranked[0]], rates[ranked[1]])
    return Verdict(ranked[0], ranked[1], compared, _outcome(compared))


def _outcome(compared: Estimate) -> str:
    if compared.low is None or compared.high is None:
        return "inconclusive"
    if compared.low > 1 + WORTH_NAMING:
        return "faster"
    if compared.low > 1 - WORTH_NAMING and compared.high < 1 + WORTH_NAMING:
        return "equivalent"
    return "inconclusive"


def _median(values: npt.NDArray[np.float64], axis: int) -> npt.NDArray[np.float64]:
    return np.asarray(np.median(values, axis=axis))


def _ratio_of_medians(
    numerator: npt.NDArray[np.float64], denominator: npt.NDArray[np.float64], axis: int
) -> npt.NDArray[np.float64]:
    return _median(numerator, axis) / _median(denominator, axis)


def _bootstrap(samples: tuple[Sequence[float], ...], statistic: object) -> tuple[float, float]:
    from scipy.stats import bootstrap  # half a second to import

    found = bootstrap(
        samples,
        statistic,
        vectorized=True,
        paired=False,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        random_state=np.random.Generator(np.random.PCG64(0)),
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)
