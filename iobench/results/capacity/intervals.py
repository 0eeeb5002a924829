"""Intervals from the slowest to the fastest of hosts like the measured one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import numpy as np

from iobench.results.stats import Estimate

QUANTILES = (0.025, 0.975)  # of the rounds: ranks that step together wait for the slowest host


def quantile_interval(values: Sequence[float]) -> Estimate:
    """Return the median with the interval that contains nearly all values."""
    low, high = (float(np.quantile(values, q)) for q in QUANTILES)
    return Estimate(statistics.median(values), low, high)


def exact(value: float) -> Estimate:
    """Return a stated value, or one derived from stated values, with an interval of no width."""
    return Estimate(value, value, value)


def with_ends(estimate: Estimate) -> tuple[float, float, float]:
    """Return median, low and high."""
    return (estimate.median, *ends(estimate))


def ends(estimate: Estimate) -> tuple[float, float]:
    """Return low and high; the median in place of a missing end."""
    low = estimate.median if estimate.low is None else estimate.low
    return low, estimate.median if estimate.high is None else estimate.high


def integer_text(estimate: Estimate) -> str:
    """Return whole numbers, rounded down, with their interval."""
    return _text(estimate, lambda value: f"{math.floor(value * (1 + 1e-9)):,}")


def percent_text(estimate: Estimate) -> str:
    """Return shares as percentages, with their interval."""
    return _text(estimate, lambda value: f"{value:.0%}")


def _text(estimate: Estimate, text: Callable[[float], str]) -> str:
    middle, low, high = map(text, with_ends(estimate))
    return middle if low == high else f"{middle} ({low} to {high})"
