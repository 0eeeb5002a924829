"""Statistics over rounds: medians, intervals, comparisons, and the leaders of several cases.

Two cases are compared by the bootstrap interval of the ratio of their medians. In trials of a case against
itself it covered the true ratio in about 19 of 20 from five rounds on. Interleaved cases share the
disturbances of each round: from ten rounds on their ratio is taken round by round, and the interval is that
of the median of these ratios by order statistics, which is never too narrow whatever the distribution. (A
bootstrap of such ratios is too narrow, at seven rounds by more than a factor of two.)
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from iobench.base import grouped

CONFIDENCE = 0.95
RESAMPLES = 4999
MIN_ROUNDS = 3  # below it there is no interval
ENOUGH_ROUNDS = 5  # from which on an interval has its nominal coverage
PAIRED_ROUNDS = 10  # from which on interleaved cases are compared round by round
MAX_TREND_VALUES = 200  # more values are first grouped into medians
MIN_DIFFERENCE = 0.05  # smallest difference that counts as one
MAX_LOG = 700.0  # a logarithm whose exponential is still finite
FEWEST_ROUNDS = 2  # of which a comparison can have an interval
PRIOR_FREEDOM = 4.0  # degrees of freedom that a case's variance borrows from those of the others
MIN_OWN = 0.05  # share of a case's variance that is its own, however much rounds share
FAR = 10.0  # times: cases that are so far apart in all rounds differ, however few rounds there are

Matrix: TypeAlias = npt.NDArray[np.float64]  # of pairs of cases


@dataclass(frozen=True)
class Estimate:
    """A median with its 95 % interval; no interval below three values."""

    median: float
    low: float | None = None
    high: float | None = None

    @property
    def precision(self) -> float | None:
        """Larger half-width of the interval as a fraction of the median; None without an interval."""
        return max(abs(end - self.median) for end in self.ends) / self.median if self.ends else None

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

    def text(self, form: Callable[[float], str]) -> str:
        """Return the median in a text form, and the ends of its interval."""
        return form(self.median) + (f" ({self.interval_text(form)})" if self.ends else "")

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
    return (
        Estimate(median, *_bootstrap(CONFIDENCE, values)) if len(values) >= MIN_ROUNDS else Estimate(median)
    )


def ratio(numerator: Sequence[float], denominator: Sequence[float], comparisons: int = 1) -> Estimate:
    """Return the ratio of the medians of two unpaired samples with its bootstrap percentile interval.

    The intervals of that many comparisons cover all true ratios together with 95 % confidence (Bonferroni).
    """
    centre = statistics.median(numerator) / statistics.median(denominator)
    if min(len(numerator), len(denominator)) < MIN_ROUNDS:
        return Estimate(centre)
    return Estimate(centre, *_bootstrap(_confidence(comparisons), numerator, denominator))


def _confidence(comparisons: int) -> float:
    """Return the confidence of each of several comparisons that together have CONFIDENCE (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / comparisons


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
    if ratio.low is None or ratio.high is None:
        outcome = "inconclusive"
    elif ratio.low > 1 + margin and ratio.median >= 1 + min_difference:
        outcome = "faster"
    elif ratio.high < 1 - margin and ratio.median <= 1 - min_difference:
        outcome = "slower"
    else:
        within = ratio.low > 1 - min_difference and ratio.high < 1 + min_difference
        outcome = "equivalent" if within else "inconclusive"
    return Comparison(ratio, outcome)


def student(
    base: Sequence[float],
    new: Sequence[float],
    comparisons: int = 1,
    middle: Callable[[Sequence[float]], float] = statistics.fmean,
) -> Estimate:
    """Return the ratio of new to base with Student's interval over logarithms, with one common variance.

    The interval is one of so many comparisons; None for one value on each side.
    """
    from scipy.stats import t

    base_logs, new_logs = ([math.log(value) for value in side] for side in (base, new))
    centre, freedom = middle(new_logs) - middle(base_logs), len(base_logs) + len(new_logs) - 2
    if not freedom:
        return Estimate(math.exp(centre))
    squares = sum((value - statistics.fmean(side)) ** 2 for side in (base_logs, new_logs) for value in side)
    spread = math.sqrt(squares / freedom * (1 / len(base_logs) + 1 / len(new_logs)))
    reach = float(t.ppf((1 + _confidence(comparisons)) / 2, freedom)) * spread
    return Estimate(math.exp(centre), math.exp(centre - reach), math.exp(min(centre + reach, MAX_LOG)))


def compare_paired(
    rates: Mapping[Any, float],
    others: Mapping[Any, float],
    min_difference: float = MIN_DIFFERENCE,
    comparisons: int = 1,
) -> Comparison:
    """Compare two interleaved cases, from their rates by round."""
    common = [rates[number] / others[number] for number in rates if number in others]
    confidence = _confidence(comparisons)
    if len(common) < PAIRED_ROUNDS or 2.0 ** (1 - len(common)) > 1 - confidence:  # the widest is too narrow
        return compare_rates(list(rates.values()), list(others.values()), min_difference, comparisons)
    from scipy.stats import quantile_test

    ends = quantile_test(common, p=0.5).confidence_interval(confidence)
    ratio = Estimate(statistics.median(common), float(ends.low), float(ends.high))
    return judge(ratio, len(common), min_difference)


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


def _bootstrap(confidence: float, *samples: Sequence[float]) -> tuple[float, float]:
    """Return the interval of the median of a sample, or of the ratio of the medians of two."""
    generator = np.random.Generator(np.random.PCG64(0))
    medians = [
        np.median(np.asarray(one, float)[generator.integers(0, len(one), (RESAMPLES, len(one)))], axis=-1)
        for one in samples
    ]
    tail = (1 - confidence) / 2
    low, high = np.quantile(functools.reduce(np.divide, medians), [tail, 1 - tail])
    return float(low), float(high)


@dataclass(frozen=True)
class Verdict:
    """The leaders, among which the fastest is with 95 % confidence, and how much slower each other case is.

    `relative` is the time of each other case over that of the fastest, the next fastest first. `at_least` is
    the factor by which each case that is no leader is slower than the true fastest, at least; all of it holds
    together with 95 % confidence. `outcome` is `single`, `fastest` (one leader), `equivalent` (leaders
    that differ by less than the minimum difference for sure), `level`, or `few-rounds`: no leader is certain.
    """

    fastest: str  # the leader with the highest median
    leaders: list[str]  # by median, the fastest first
    outcome: str
    relative: dict[str, Estimate]
    at_least: dict[str, float]
    min_difference: float


def verdict_on(rates: Mapping[str, Mapping[Any, float]], min_difference: float = MIN_DIFFERENCE) -> Verdict:
    """Return the leaders from each case's rates by round, and the relative times.

    Hsu's multiple comparisons with the best, over logarithms of rates in the rounds that two cases share. A
    case is a leader unless some case is faster by more than the half-width of their interval, or while its
    median is within the minimum difference of the highest. As the noise of cases differs, so do the
    half-widths: Šidák's quantile of Student's t with Welch's degrees of freedom stands for Dunnett's.
    """
    speeds = median_rates(rates)
    names = list(speeds)
    rounds = dict.fromkeys(number for name in names for number in rates[name])
    logs = [[math.log(rates[name].get(number, math.nan)) for number in rounds] for name in names]
    gaps, reach, known = _gaps(np.array(logs))
    lower = gaps - reach
    times = [speeds[names[0]] / speeds[name] for name in names]
    led = [time < 1 + min_difference or max(row) <= 0 for time, row in zip(times, lower, strict=True)]
    leaders = [name for name, one in zip(names, led, strict=True) if one]
    relative = dict[str, Estimate]()
    for n, name in enumerate(names[1:], 1):
        relative[name] = Estimate(times[n])
        if known:  # the interval holds the ratio of medians, too
            low, high = gaps[n, 0] - reach[n, 0], min(gaps[n, 0] + reach[n, 0], MAX_LOG)
            relative[name] = Estimate(times[n], min(times[n], math.exp(low)), max(times[n], math.exp(high)))
    judged = (judge(relative[name], ENOUGH_ROUNDS, min_difference) for name in leaders[1:])
    within = all(one.outcome == "equivalent" for one in judged)
    several = "equivalent" if within else "level" if known else "few-rounds"
    outcome = "single" if len(names) == 1 else "fastest" if len(leaders) == 1 else several
    at_least = {
        name: math.exp(max(0.0, float(lower[n, led].min()))) for n, name in enumerate(names) if not led[n]
    }
    return Verdict(names[0], leaders, outcome, relative, at_least, min_difference)


def _gaps(logs: npt.NDArray[np.float64]) -> tuple[Matrix, Matrix, bool]:
    """Return by how much each case is slower than each other (logarithm), the half-width of its interval.

    `logs` has a row for each case and a column for each round; NaN for a round that a case lacks.

    Also return False if there are too few rounds for intervals: cases that are FAR apart then differ.

    What rounds share, such as background load, is in all cases' variances, but in no difference: their
    mean covariance is taken off. Few rounds make a poor variance, which borrows from the other cases
    (Smyth 2004), but only upwards: a noisy case stays noisy.
    """
    from scipy.stats import t

    there = ~np.isnan(logs)
    shared, own = there.astype(float) @ there.T, there.sum(axis=1)
    paired = shared > 0
    sums = np.where(there, logs, 0.0)
    means = sums.sum(axis=1) / own
    gaps = np.where(paired, there @ sums.T - sums @ there.T, 0.0) / np.maximum(shared, 1)
    others = ~np.eye(len(logs), dtype=bool)
    # times `others`: products that are rounded must not make a case slower than itself
    gaps = np.where(paired, gaps, means[None, :] - means[:, None]) * others
    rests = np.where(there, logs - means[:, None], 0.0)
    products, freedom = rests @ rests.T, own - 1.0
    if not freedom.any():
        return gaps, np.full_like(gaps, math.log(FAR)) * others, False
    variances = np.diag(products) / np.maximum(freedom, 1)
    pairs = others & (shared > 1)
    common = max(0.0, float((products[pairs] / (shared[pairs] - 1)).mean())) if pairs.any() else 0.0
    variances = np.maximum(variances - common, MIN_OWN * variances)
    elsewhere = freedom.sum() - freedom
    prior = (freedom @ variances - freedom * variances) / np.maximum(elsewhere, 1)
    weight = np.minimum(PRIOR_FREEDOM, elsewhere / 2)
    total = np.maximum(weight + freedom, 0.5)
    variances = np.maximum(variances, (weight * prior + freedom * variances) / total)
    mine = variances[:, None] / np.where(paired, shared, own[:, None])
    theirs = variances[None, :] / np.where(paired, shared, own[None, :])
    square = mine + theirs
    with np.errstate(invalid="ignore"):
        welch = square**2 / (mine**2 / total[:, None] + theirs**2 / total[None, :])
    confidence = (1 + CONFIDENCE ** (1 / max(1, len(logs) - 1))) / 2
    reach = t.ppf(confidence, np.where(square > 0, welch, 1.0)) * np.sqrt(square)
    return gaps, np.where(others, reach, 0.0), True


def compared(rates: Mapping[Any, float], others: Mapping[Any, float], comparisons: int) -> Comparison:
    """Compare two cases, from their rates by round, as one of so many comparisons.

    Two rounds of each suffice if Student's interval over logarithms exceeds the minimum difference as a
    whole; else they have no interval. In simulations of a case against itself a win was reported in 1 of
    100 trials, and in 1 of 20 where two rounds of five took twice the time. Where all rounds are FAR apart,
    one round of each suffices.
    """
    if min(len(rates), len(others)) == FEWEST_ROUNDS:
        ratio = student([*others.values()], [*rates.values()], comparisons)
        comparison = judge(ratio, FEWEST_ROUNDS)
        if comparison.outcome == "inconclusive":
            comparison = Comparison(Estimate(ratio.median), "inconclusive")
    else:
        comparison = compare_paired(rates, others, comparisons=comparisons)
    if comparison.ratio.low is None and rates and others:
        if min(rates.values()) >= FAR * max(others.values()):
            return Comparison(comparison.ratio, "faster")
        if min(others.values()) >= FAR * max(rates.values()):
            return Comparison(comparison.ratio, "slower")
    return comparison


def median_rates(rates: Mapping[str, Mapping[Any, float]]) -> dict[str, float]:
    """Return the median rate of each case, the fastest first.

    A case that was eliminated has no later rounds, in which the machine may have been faster or slower:
    its rates are divided by how fast each of its rounds was for the cases that have the most rounds.
    """
    medians = {label: statistics.median(values.values()) for label, values in rates.items() if values}
    most = max((len(rates[label]) for label in medians), default=0)
    whole = [label for label in medians if len(rates[label]) == most]
    by_round = grouped(
        (number, rate / medians[label]) for label in whole for number, rate in rates[label].items()
    )
    speeds = {number: statistics.median(relative) for number, relative in by_round.items()}
    for label in medians.keys() - set(whole):
        adjusted = [rate / speeds[number] for number, rate in rates[label].items() if number in speeds]
        medians[label] = statistics.median(adjusted or [medians[label]])
    return {label: medians[label] for label in sorted(medians, key=medians.__getitem__, reverse=True)}
