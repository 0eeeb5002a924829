"""Ranking of cases: the leaders of several, and how much slower the others are."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from iobench.results import stats
from iobench.results.stats import Comparison, Estimate

FEWEST_ROUNDS = 2  # of which a comparison can have an interval
PRIOR_FREEDOM = 4.0  # degrees of freedom that a case's variance borrows from those of the others
MIN_OWN = 0.05  # share of a case's variance that is its own, however much rounds share
MAX_LOG = 700.0  # a logarithm whose exponential is still finite
FAR = 10.0  # times: cases that are so far apart in all rounds differ, however few rounds there are

Matrix: TypeAlias = npt.NDArray[np.float64]  # of pairs of cases


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


def verdict_on(
    rates: Mapping[str, Mapping[Any, float]], min_difference: float = stats.MIN_DIFFERENCE
) -> Verdict:
    """Return the leaders from each case's rates by round, and the relative times.

    Hsu's multiple comparisons with the best, over logarithms of rates in the rounds that two cases share. A
    case is a leader unless some case is faster by more than the half-width of their interval, or while its
    median is within the minimum difference of the highest. As the noise of cases differs, so do the
    half-widths: Šidák's quantile of Student's t with Welch's degrees of freedom stands for Dunnett's.
    """
    speeds = median_rates(rates)
    names = list(speeds)
    gaps, reach, known = _gaps(np.array(_aligned([rates[name] for name in names])))
    lower = gaps - reach
    times = [speeds[names[0]] / speeds[name] for name in names]
    led = [time < 1 + min_difference or max(row) <= 0 for time, row in zip(times, lower, strict=True)]
    leaders = [name for name, one in zip(names, led, strict=True) if one]
    relative = {
        name: Estimate(times[n], *_ends(times[n], gaps[n, 0], reach[n, 0]) if known else (None, None))
        for n, name in enumerate(names)
        if n
    }
    within = all(
        one.low is not None and one.high is not None
        and one.low > 1 - min_difference
        and one.high < 1 + min_difference
        for one in (relative[name] for name in leaders[1:])
    )  # fmt: skip
    several = "equivalent" if within else "level" if known else "few-rounds"
    outcome = "single" if len(names) == 1 else "fastest" if len(leaders) == 1 else several
    at_least = {
        name: math.exp(max(0.0, float(lower[n, led].min()))) for n, name in enumerate(names) if not led[n]
    }
    return Verdict(names[0], leaders, outcome, relative, at_least, min_difference)


def _aligned(rates: Sequence[Mapping[Any, float]]) -> list[list[float]]:
    """Return a row of logarithms for each case, with a column for each round; NaN for a round it lacks."""
    numbers = list(dict.fromkeys(number for one in rates for number in one))
    return [[math.log(one[number]) if number in one else math.nan for number in numbers] for one in rates]


def _gaps(logs: npt.NDArray[np.float64]) -> tuple[Matrix, Matrix, bool]:
    """Return by how much each case is slower than each other (logarithm), the half-width of its interval.

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
    confidence = (1 + stats.CONFIDENCE ** (1 / max(1, len(logs) - 1))) / 2
    reach = t.ppf(confidence, np.where(square > 0, welch, 1.0)) * np.sqrt(square)
    return gaps, np.where(others, reach, 0.0), True


def _ends(median: float, gap: float, reach: float) -> tuple[float, float]:
    """Return the ends of the interval of a relative time, which holds the ratio of medians, too."""
    return min(median, math.exp(gap - reach)), max(median, math.exp(min(gap + reach, MAX_LOG)))


def compared(
    rates: Mapping[Any, float],
    others: Mapping[Any, float],
    comparisons: int,
    min_difference: float = stats.MIN_DIFFERENCE,
) -> Comparison:
    """Compare two cases, from their rates by round, as one of so many comparisons.

    Two rounds of each suffice if Student's interval over logarithms exceeds the minimum difference as a
    whole; else they have no interval. In simulations of a case against itself a win was reported in 1 of
    100 trials, and in 1 of 20 where two rounds of five took twice the time. Where all rounds are FAR apart,
    one round of each suffices.
    """
    if min(len(rates), len(others)) == FEWEST_ROUNDS:
        comparison = _of_two_rounds(rates, others, comparisons, min_difference)
    else:
        comparison = stats.compare_paired(rates, others, min_difference, comparisons)
    if comparison.ratio.low is None and rates and others:
        if min(rates.values()) >= FAR * max(others.values()):
            return Comparison(comparison.ratio, "faster")
        if min(others.values()) >= FAR * max(rates.values()):
            return Comparison(comparison.ratio, "slower")
    return comparison


def _of_two_rounds(
    rates: Mapping[Any, float], others: Mapping[Any, float], comparisons: int, min_difference: float
) -> Comparison:
    confidence = 1 - (1 - stats.CONFIDENCE) / comparisons
    ratio = stats.student([*others.values()], [*rates.values()], statistics.fmean, confidence)
    comparison = stats.judge(ratio, FEWEST_ROUNDS, min_difference)
    unknown = Comparison(Estimate(ratio.median, None, None), "inconclusive")
    return unknown if comparison.outcome == "inconclusive" else comparison


def by_speed(rates: Mapping[str, Mapping[Any, float]]) -> list[str]:
    """Return the cases by median rate, the fastest first."""
    return list(median_rates(rates))


def median_rates(rates: Mapping[str, Mapping[Any, float]]) -> dict[str, float]:
    """Return the median rate of each case, the fastest first.

    A case that was eliminated has no later rounds, in which the machine may have been faster or slower:
    its rates are divided by how fast each of its rounds was for the cases that have the most rounds.
    """
    medians = {label: statistics.median(values.values()) for label, values in rates.items() if values}
    most = max((len(rates[label]) for label in medians), default=0)
    whole = [label for label in medians if len(rates[label]) == most]
    speeds = _round_speeds([rates[label] for label in whole])
    for label in medians.keys() - set(whole):
        adjusted = [rate / speeds[number] for number, rate in rates[label].items() if number in speeds]
        medians[label] = statistics.median(adjusted or [medians[label]])
    return {label: medians[label] for label in sorted(medians, key=medians.__getitem__, reverse=True)}


def _round_speeds(rates: Sequence[Mapping[Any, float]]) -> dict[Any, float]:
    """Return each round's speed: the median over the cases of the round's rate over the case's median."""
    by_round = defaultdict(list)
    for case in rates:
        middle = statistics.median(case.values())
        for number, rate in case.items():
            by_round[number].append(rate / middle)
    return {number: statistics.median(found) for number, found in by_round.items()}
