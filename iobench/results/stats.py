"""Statistics over rounds: medians, intervals, comparisons.

Two cases are compared by the bootstrap interval of the ratio of their medians. In trials of a case against
itself it covered the true ratio in about 19 of 20 from five rounds on. Interleaved cases share the
disturbances of each round: from ten rounds on their ratio is taken round by round, and the interval is that
of the median of these ratios by order statistics, which is never too narrow whatever the distribution. (A
bootstrap of such ratios is too narrow, at seven rounds by more than a factor of two.)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
RESAMPLES = 4999
MIN_ROUNDS = 3  # below it there is no interval
ENOUGH_ROUNDS = 5  # from which on an interval has its nominal coverage
PAIRED_ROUNDS = 10  # from which on interleaved cases are compared round by round
MAX_TREND_VALUES = 200  # more values are first grouped into medians
MIN_DIFFERENCE = 0.05  # smallest difference that counts as one
_MAX_LOG = 700.0  # a logarithm whose exponential is still finite


@dataclass(frozen=True)
class Estimate:
    """A median with its 95 % interval; no interval below three values."""

    median: float
    low: float | None
    high: float | None

    @property
    def precision(self) -> float | None:
        """Larger half-width of the interval as a fraction of the median; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return max(self.high - self.median, self.median - self.low) / self.median

    @property
    def ends(self) -> tuple[float, float] | None:
        """The ends of the interval; None without an interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def inverse(self) -> Estimate:
        """The estimate of the inverse ratio."""
        low, high = (None if end is None else 1 / end for end in (self.high, self.low))
        return Estimate(1 / self.median, low, high)

    def times(self, factor: float) -> Estimate:
        """Return the estimate of a multiple."""
        values = (self.median, self.low, self.high)
        return Estimate(*(None if value is None else value * factor for value in values))  # type: ignore[arg-type]

    def text(
        self, form: Callable[[float], str], relation: str = "", ends: str = " ({} – {})", missing: str = ""
    ) -> str:
        """Return the median in a text form, its relation, and the ends of its interval or `missing`."""
        interval = ends.format(*map(form, self.ends)) if self.ends else missing
        return f"{form(self.median)}{relation}{interval}"

    def interval_text(self, form: Callable[[float], str]) -> str:
        """Return the ends of the interval in a text form; a dash without an interval."""
        return " – ".join(map(form, self.ends)) if self.ends else "–"


@dataclass(frozen=True)
class Comparison:
    """Ratio of one case's rate to another's, and its outcome.

    `outcome` is `faster` or `slower` where the interval excludes 1 and the ratio differs from 1 by at least
    the minimum difference (below five rounds: where the whole interval does); `equivalent` where the whole
    interval is closer to 1 than that; else `inconclusive`.
    """

    ratio: Estimate
    outcome: str


def estimate(values: Sequence[float]) -> Estimate:
    """Return the median of the values with its bootstrap percentile interval (Efron 1979)."""
    median = statistics.median(values)
    if len(values) < MIN_ROUNDS:
        return Estimate(median, None, None)
    low, high = _bootstrap((values,), _median, CONFIDENCE)
    return Estimate(median, low, high)


def ratio(numerator: Sequence[float], denominator: Sequence[float], comparisons: int = 1) -> Estimate:
    """Return the ratio of the medians of two unpaired samples with its bootstrap percentile interval.

    The intervals of that many comparisons cover all true ratios together with 95 % confidence (Bonferroni).
    """
    centre = statistics.median(numerator) / statistics.median(denominator)
    if min(len(numerator), len(denominator)) < MIN_ROUNDS:
        return Estimate(centre, None, None)
    confidence = 1 - (1 - CONFIDENCE) / comparisons
    low, high = _bootstrap((numerator, denominator), _ratio_of_medians, confidence)
    return Estimate(centre, low, high)


def compare_rates(
    rates: Sequence[float],
    others: Sequence[float],
    min_difference: float = MIN_DIFFERENCE,
    comparisons: int = 1,
) -> Comparison:
    """Compare the first case's rates with the second's (higher is faster), as one of so many comparisons."""
    return judge(ratio(rates, others, comparisons), min(len(rates), len(others)), min_difference)


def judge(
    ratio: Estimate, rounds: int, min_difference: float = MIN_DIFFERENCE, whole_interval: bool = False
) -> Comparison:
    """Return the outcome of a ratio, where the side with fewer rounds has so many.

    `whole_interval` requires that the whole interval lies beyond the minimum difference; with few rounds
    that is always required.
    """
    margin = min_difference if whole_interval or rounds < ENOUGH_ROUNDS else 0.0
    return Comparison(ratio, _outcome(ratio, min_difference, margin))


def student(
    base: Sequence[float], new: Sequence[float], middle: Callable[[Sequence[float]], float], confidence: float
) -> Estimate:
    """Return the ratio of two sides with Student's interval over logarithms, with one common variance."""
    from scipy.stats import t

    base_logs, new_logs = ([math.log(value) for value in side] for side in (base, new))
    centre, freedom = middle(new_logs) - middle(base_logs), len(base_logs) + len(new_logs) - 2
    if not freedom:
        return Estimate(math.exp(centre), None, None)
    squares = sum((value - statistics.fmean(side)) ** 2 for side in (base_logs, new_logs) for value in side)
    spread = math.sqrt(squares / freedom * (1 / len(base_logs) + 1 / len(new_logs)))
    reach = float(t.ppf((1 + confidence) / 2, freedom)) * spread
    return Estimate(math.exp(centre), math.exp(centre - reach), math.exp(min(centre + reach, _MAX_LOG)))


def compare_paired(
    rates: Mapping[Any, float],
    others: Mapping[Any, float],
    min_difference: float = MIN_DIFFERENCE,
    comparisons: int = 1,
) -> Comparison:
    """Compare two interleaved cases, from their rates by round."""
    common = [rates[number] / others[number] for number in rates if number in others]
    confidence = 1 - (1 - CONFIDENCE) / comparisons
    if len(common) < PAIRED_ROUNDS or 2.0 ** (1 - len(common)) > 1 - confidence:  # the widest is too narrow
        return compare_rates(list(rates.values()), list(others.values()), min_difference, comparisons)
    estimate = Estimate(statistics.median(common), *_order_statistics(common, confidence))
    return Comparison(estimate, _outcome(estimate, min_difference, margin=0.0))


def correction(comparisons: int) -> str | None:
    """Return the correction for several comparisons in words; None for a single one."""
    return f"Bonferroni over {comparisons} comparisons" if comparisons > 1 else None


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether one is at least as high as the other in every figure, and higher in some (Pareto)."""
    return one != other and all(own >= their for own, their in zip(one, other, strict=True))


def spread(values: Sequence[float]) -> float:
    """Return the robust standard deviation (1.4826 × the median absolute deviation) over the median."""
    median = statistics.median(values)
    return 1.4826 * statistics.median(abs(value - median) for value in values) / median


def trend(values: Sequence[float]) -> tuple[float, float]:
    """Return the rise over the median from first to last (Theil-Sen), and its p-value (Kendall's tau)."""
    from scipy.stats import kendalltau, theilslopes

    values = [statistics.median(part) for part in np.array_split(values, min(len(values), MAX_TREND_VALUES))]
    steps = range(len(values))
    slope = float(theilslopes(values, steps).slope)
    return slope * (len(values) - 1) / statistics.median(values), float(kendalltau(steps, values).pvalue)


def _outcome(ratio: Estimate, min_difference: float, margin: float) -> str:
    if ratio.low is None or ratio.high is None:
        return "inconclusive"
    if ratio.low > 1 + margin and ratio.median >= 1 + min_difference:
        return "faster"
    if ratio.high < 1 - margin and ratio.median <= 1 - min_difference:
        return "slower"
    within = ratio.low > 1 - min_difference and ratio.high < 1 + min_difference
    return "equivalent" if within else "inconclusive"


def _median(values: npt.NDArray[np.float64], axis: int) -> npt.NDArray[np.float64]:
    return np.asarray(np.median(values, axis=axis))


def _ratio_of_medians(
    numerator: npt.NDArray[np.float64], denominator: npt.NDArray[np.float64], axis: int
) -> npt.NDArray[np.float64]:
    return _median(numerator, axis) / _median(denominator, axis)


def _order_statistics(values: Sequence[float], confidence: float) -> tuple[float, float]:
    """Return the interval of a median between two of the values: exact for any distribution."""
    from scipy.stats import quantile_test

    interval = quantile_test(values, p=0.5).confidence_interval(confidence)
    return float(interval.low), float(interval.high)


def _bootstrap(
    samples: tuple[Sequence[float], ...], statistic: Callable[..., npt.NDArray[np.float64]], confidence: float
) -> tuple[float, float]:
    generator = np.random.Generator(np.random.PCG64(0))
    resampled = [
        np.asarray(one, float)[generator.integers(0, len(one), (RESAMPLES, len(one)))] for one in samples
    ]
    tail = (1 - confidence) / 2
    low, high = np.quantile(statistic(*resampled, axis=-1), [tail, 1 - tail])
    return float(low), float(high)
