"""Pure arithmetic over rounds: medians, intervals, comparisons, verdicts.

Two cases are compared by the bootstrap interval of the ratio of their medians, which trials of a case
against itself found to be right about 19 times in 20 from five rounds on. Cases that took turns share
what the machine did in each round: from ten rounds on their ratios are taken round by round, and the
interval is that of the median of these, by order statistics, which is never too narrow whatever the
distribution. (A bootstrap of such ratios is, at seven rounds by more than twice.)
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
FEWEST = 3  # rounds below which an interval says nothing
ENOUGH = 5  # rounds from which an interval is as sure as it says
PAIRED = 10  # rounds from which cases that took turns are compared round by round
MOST_STEPS = 200  # that a trend is looked for in; more values are taken together
WORTH_NAMING = 0.05  # smallest difference that is called one
_LARGEST = 700.0  # a logarithm whose exponential is still a number


@dataclass(frozen=True)
class Estimate:
    """A median with its 95 % interval; no interval below three values."""

    median: float
    low: float | None
    high: float | None

    @property
    def precision(self) -> float | None:
        """How far the interval reaches from the median, as a fraction of it; None without one."""
        if self.low is None or self.high is None:
            return None
        return max(self.high - self.median, self.median - self.low) / self.median


@dataclass(frozen=True)
class Comparison:
    """How many times as fast one case is as another, and what that amounts to.

    `outcome` is `faster` or `slower` where the interval leaves out 1 and the ratio is at least the
    smallest difference worth naming away from it (below five rounds: where the whole interval is);
    `equivalent` where the whole interval is closer to 1 than that; else `inconclusive`.
    """

    ratio: Estimate
    outcome: str


@dataclass(frozen=True)
class Verdict:
    """Which case is fastest and how sure that is.

    `against` compares it with every other case, the next fastest first. `outcome` is `faster` where it
    is faster than all of them; else `rivals` are those it may not be faster than, and `outcome` is
    `equivalent` if it is as fast as each of these, or `inconclusive`; `single` without another case.
    `runner_up`, with `ratio`, is the first rival, or the next fastest.
    """

    fastest: str
    runner_up: str | None
    ratio: Estimate | None
    outcome: str
    against: dict[str, Comparison]
    rivals: list[str]
    smallest: float
    correction: str | None


def estimate(values: Sequence[float]) -> Estimate:
    """The median of the values with its bootstrap percentile interval (Efron 1979)."""
    median = statistics.median(values)
    if len(values) < FEWEST:
        return Estimate(median, None, None)
    low, high = _bootstrap((values,), _median, CONFIDENCE)
    return Estimate(median, low, high)


def ratio(numerator: Sequence[float], denominator: Sequence[float], comparisons: int = 1) -> Estimate:
    """The ratio of the medians of two samples with its bootstrap percentile interval, unpaired.

    The interval holds the true ratios of that many comparisons, all together, with 95 % confidence
    (Bonferroni).
    """
    centre = statistics.median(numerator) / statistics.median(denominator)
    if min(len(numerator), len(denominator)) < FEWEST:
        return Estimate(centre, None, None)
    confidence = 1 - (1 - CONFIDENCE) / comparisons
    low, high = _bootstrap((numerator, denominator), _ratio_of_medians, confidence)
    return Estimate(centre, low, high)


def compare_rates(
    rates: Sequence[float], others: Sequence[float], smallest: float = WORTH_NAMING, comparisons: int = 1
) -> Comparison:
    """The first case's rates against the second's (larger is faster), as one of so many comparisons."""
    return judge(ratio(rates, others, comparisons), min(len(rates), len(others)), smallest)


def judge(found: Estimate, rounds: int, smallest: float = WORTH_NAMING, whole: bool = False) -> Comparison:
    """What a ratio amounts to, where the side with fewer rounds has so many.

    `whole` asks that the whole interval lie beyond the smallest difference, as few rounds always do.
    """
    must_clear = smallest if whole or rounds < ENOUGH else 0.0
    return Comparison(found, _outcome(found, smallest, must_clear))


def student(
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
    return Estimate(math.exp(centre), math.exp(centre - reach), math.exp(min(centre + reach, _LARGEST)))


def compare_paired(
    rates: Mapping[Any, float],
    others: Mapping[Any, float],
    smallest: float = WORTH_NAMING,
    comparisons: int = 1,
) -> Comparison:
    """The same for two cases that took turns, from their rates by round."""
    common = [rates[number] / others[number] for number in rates if number in others]
    confidence = 1 - (1 - CONFIDENCE) / comparisons
    if len(common) < PAIRED or 2.0 ** (1 - len(common)) > 1 - confidence:  # the widest there is, too narrow
        return compare_rates(list(rates.values()), list(others.values()), smallest, comparisons)
    found = Estimate(statistics.median(common), *_order_statistics(common, confidence))
    return Comparison(found, _outcome(found, smallest, must_clear=0.0))


def verdict(rates: Mapping[str, Mapping[Any, float]], smallest: float = WORTH_NAMING) -> Verdict:
    """The fastest case by median rate against all others, from each case's rates by round."""
    medians = {label: statistics.median(values.values()) for label, values in rates.items()}
    fastest, *others = sorted(medians, key=lambda label: medians[label], reverse=True)
    against = {
        other: compare_paired(rates[fastest], rates[other], smallest, comparisons=len(others))
        for other in others
    }
    rivals = [other for other in others if against[other].outcome != "faster"]
    runner_up = next(iter(rivals or others), None)
    return Verdict(
        fastest,
        runner_up,
        against[runner_up].ratio if runner_up else None,
        _overall([against[rival].outcome for rival in rivals]) if others else "single",
        against,
        rivals,
        smallest,
        correction(len(others)),
    )


def correction(comparisons: int) -> str | None:
    """What was done about many comparisons at once; None where there were not many."""
    return f"Bonferroni over {comparisons} comparisons" if comparisons > 1 else None


def spread(values: Sequence[float]) -> float:
    """The robust standard deviation (1.4826 × the median absolute deviation) as a part of the median."""
    median = statistics.median(values)
    return 1.4826 * statistics.median(abs(value - median) for value in values) / median


def trend(values: Sequence[float]) -> tuple[float, float]:
    """By what part of the median the values rise from first to last, and how likely that is chance.

    Theil and Sen's slope, Kendall's tau.
    """
    from scipy.stats import kendalltau, theilslopes

    values = [statistics.median(part) for part in np.array_split(values, min(len(values), MOST_STEPS))]
    steps = range(len(values))
    slope = float(theilslopes(values, steps).slope)
    return slope * (len(values) - 1) / statistics.median(values), float(kendalltau(steps, values).pvalue)


def _outcome(found: Estimate, smallest: float, must_clear: float) -> str:
    if found.low is None or found.high is None:
        return "inconclusive"
    if found.low > 1 + must_clear and found.median >= 1 + smallest:
        return "faster"
    if found.high < 1 - must_clear and found.median <= 1 - smallest:
        return "slower"
    within = found.low > 1 - smallest and found.high < 1 + smallest
    return "equivalent" if within else "inconclusive"


def _overall(outcomes: Sequence[str]) -> str:
    if not outcomes:
        return "faster"
    return "equivalent" if set(outcomes) == {"equivalent"} else "inconclusive"


def _median(values: npt.NDArray[np.float64], axis: int) -> npt.NDArray[np.float64]:
    return np.asarray(np.median(values, axis=axis))


def _ratio_of_medians(
    numerator: npt.NDArray[np.float64], denominator: npt.NDArray[np.float64], axis: int
) -> npt.NDArray[np.float64]:
    return _median(numerator, axis) / _median(denominator, axis)


def _order_statistics(values: Sequence[float], confidence: float) -> tuple[float, float]:
    """The interval of a median between two of the values: exact and free of distributions."""
    from scipy.stats import quantile_test

    found = quantile_test(values, p=0.5).confidence_interval(confidence)
    return float(found.low), float(found.high)


def _bootstrap(
    samples: tuple[Sequence[float], ...], statistic: object, confidence: float
) -> tuple[float, float]:
    from scipy.stats import bootstrap  # half a second to import

    found = bootstrap(
        samples,
        statistic,
        vectorized=True,
        paired=False,
        n_resamples=RESAMPLES,
        confidence_level=confidence,
        method="percentile",
        random_state=np.random.Generator(np.random.PCG64(0)),
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)
