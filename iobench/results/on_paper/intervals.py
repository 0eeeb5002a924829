"""Figures from the slowest to the fastest of hosts that are like the one that was measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import numpy as np

from iobench.results.stats import Estimate

SPREAD = (0.025, 0.975)  # quantiles of the rounds: ranks that step together wait for the slowest host


def spread(values: Sequence[float]) -> Estimate:
    """The median, and within which nearly all of the values lie."""
    low, high = (float(np.quantile(values, q)) for q in SPREAD)
    return Estimate(statistics.median(values), low, high)


def exactly(value: float) -> Estimate:
    """A value that is stated, or follows from what is."""
    return Estimate(value, value, value)


def known(estimate: Estimate) -> tuple[float, float, float]:
    """Median, low and high."""
    return (estimate.median, *ends(estimate))


def ends(estimate: Estimate) -> tuple[float, float]:
    """Low and high; the median for one that there is none of."""
    low = estimate.median if estimate.low is None else estimate.low
    return low, estimate.median if estimate.high is None else estimate.high


def numbers(estimate: Estimate) -> str:
    """Whole numbers, rounded down."""
    return _with_ends(estimate, lambda value: f"{math.floor(value * (1 + 1e-9)):,}")


def percents(estimate: Estimate) -> str:
    """Parts of a whole."""
    return _with_ends(estimate, lambda value: f"{value:.0%}")


def _with_ends(estimate: Estimate, text: Callable[[float], str]) -> str:
    """A figure with its interval, where that is one."""
    middle, low, high = map(text, known(estimate))
    return middle if low == high else f"{middle} ({low} to {high})"
