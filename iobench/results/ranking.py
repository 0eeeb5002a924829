"""Ranking of cases: the fastest of several, and the confidence in it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iobench.results import stats
from iobench.results.stats import Comparison, Estimate

FEWEST_ROUNDS = 2  # of which a comparison can have an interval
FAR = 10.0  # times: cases that are so far apart in all rounds differ, however few rounds there are


@dataclass(frozen=True)
class Verdict:
    """The fastest case, and the confidence in it.

    `against` compares it with every other case, the next fastest first. `outcome` is `faster` where it is
    faster than all others. Else `rivals` are the cases without a significant difference from it, and
    `outcome` is `equivalent` if it is as fast as each of these, or `inconclusive`. `single` means that there
    is no other case. `runner_up`, with `ratio`, is the first rival, or the next fastest.
    """

    fastest: str
    runner_up: str | None
    ratio: Estimate | None
    outcome: str
    against: dict[str, Comparison]
    rivals: list[str]
    min_difference: float
    correction: str | None


def verdict_on(
    rates: Mapping[str, Mapping[Any, float]], min_difference: float = stats.MIN_DIFFERENCE
) -> Verdict:
    """Compare the fastest case with all others, the nearest first, from each case's rates by round.

    `compared` says how few rounds suffice.
    """
    fastest, *others = by_speed(rates)
    found = {other: compared(rates[fastest], rates[other], len(others), min_difference) for other in others}
    others = sorted(others, key=lambda other: found[other].ratio.median)
    against = {other: found[other] for other in others}
    rivals = [other for other in others if against[other].outcome != "faster"]
    runner_up = next(iter(rivals or others), None)
    return Verdict(
        fastest,
        runner_up,
        against[runner_up].ratio if runner_up else None,
        _overall([against[rival].outcome for rival in rivals]) if others else "single",
        against,
        rivals,
        min_difference,
        stats.correction(len(others)),
    )


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
    """Return the cases by median rate, the fastest first.

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
    return sorted(medians, key=lambda label: medians[label], reverse=True)


def _round_speeds(rates: Sequence[Mapping[Any, float]]) -> dict[Any, float]:
    """Return each round's speed: the median over the cases of the round's rate over the case's median."""
    by_round = defaultdict(list)
    for case in rates:
        middle = statistics.median(case.values())
        for number, rate in case.items():
            by_round[number].append(rate / middle)
    return {number: statistics.median(found) for number, found in by_round.items()}


def _overall(outcomes: Sequence[str]) -> str:
    if not outcomes:
        return "faster"
    return "equivalent" if set(outcomes) == {"equivalent"} else "inconclusive"
