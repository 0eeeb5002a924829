"""Warnings about the rounds: their number, duration, spread and drift."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from iobench.base import thresholds
from iobench.base.units import counted, seconds_text
from iobench.results import cases, stats
from iobench.results.record import Record
from iobench.results.run_warning import MORE_ROUNDS, Cases, Check, RunWarning, warm_cases

MAX_SPREAD = 0.10  # robust standard deviation over median
MIN_DRIFT = 0.10  # from the first round to the last
SIGNIFICANCE = 0.05  # probability of such a drift in rounds that only scatter
MIN_OFFSET = 0.10  # of a first round from the rest, and at least three times their spread


def _few_rounds(groups: Cases) -> RunWarning | None:
    """Warn if there are fewer than five rounds: intervals lack their nominal coverage."""
    fewest = min(map(len, groups.values()))
    if fewest >= stats.ENOUGH_ROUNDS:
        return None
    return RunWarning(
        "few-rounds",
        f"{counted(fewest, 'round')}: too few for a reliable interval",
        hints=(f"give --rounds {stats.ENOUGH_ROUNDS} or more",),
        values={"rounds": fewest, "enough": stats.ENOUGH_ROUNDS},
    )


def _short_rounds(groups: Cases) -> RunWarning | None:
    """Warn if rounds of a warm case last less than 0.2 s; a cold round is one epoch, however short."""
    groups = warm_cases(groups)
    times = {key: statistics.median(r.timing.epochs_s for r in rounds) for key, rounds in groups.items()}
    short = [key for key, time in times.items() if time < thresholds.ROUND_S]
    if not short:
        return None
    least = min(times[key] for key in short)
    return RunWarning(
        "short-rounds",
        f"rounds of only {seconds_text(least)} (below {seconds_text(thresholds.ROUND_S)}) measure momentary "
        "disturbances as much as the case",
        short,
        ("prepare more data (--size)",),
        {"seconds": least, "enough_s": thresholds.ROUND_S},
    )


def _spread(groups: Cases) -> RunWarning | None:
    """Warn if rounds of a case differ by more than 10 % (robust standard deviation)."""
    spreads = {key: stats.spread(_rates(rounds)) for key, rounds in groups.items() if len(rounds) > 2}
    wide = [key for key, spread in spreads.items() if spread > MAX_SPREAD]
    if not wide:
        return None
    own = [r for key in wide for r in groups[key] if r.facets["loader"] == "native"]  # may gather by torch
    threads = max((r.processor.torch_threads or 1 for r in own), default=1)
    fewer = (f"try OMP_NUM_THREADS=1: torch's {threads} threads wait for each other beside other work",)
    return RunWarning(
        "round-spread",
        f"rounds differ by up to {max(spreads.values()):.0%} (robust standard deviation)",
        wide,
        ("stop background work", *(fewer if threads > 1 else ()), "prepare more data", MORE_ROUNDS),
        {"spread": max(spreads.values())},
    )


def _by_context(check: Check) -> Check:
    """Return the check applied to each context separately: its rounds have a course of their own."""

    def run(groups: Cases) -> RunWarning | None:
        contexts = cases.by_context(groups)
        for own in contexts:
            if (warning := check(own)) is not None:
                return replace(warning, cases=[] if len(contexts) == 1 else list(own))
        return None

    return run


@_by_context
def _drift(groups: Cases) -> RunWarning | None:
    """Warn if rounds got steadily faster or slower; slowing cold rounds suggest a throttling disk.

    All cases are taken together, because a change of the machine affects all. The first round is excluded.
    """
    cycles = _cycles(groups)[1:]
    if len(cycles) < stats.ENOUGH_ROUNDS - 1:
        return None
    change, chance = stats.trend(cycles)
    if abs(change) < MIN_DRIFT or chance > max(SIGNIFICANCE, _least_chance(len(cycles))):
        return None
    course = f"rounds got {'faster' if change > 0 else 'slower'} by {abs(change):.0%} during the run"
    cold = next(iter(groups.values()))[0].cache.mode == "cold"
    if cold and change < 0:
        return RunWarning(
            "disk-throttling",
            f"{course}: the disk may throttle after a burst",
            hints=("wait, and give --rounds 20 to see where it settles",),
            values={"change": change},
        )
    return RunWarning(
        "drift",
        f"{course}: the machine warms up, slows down or is shared",
        hints=("wait, and run again",),
        values={"change": change},
    )


@_by_context
def _first_round(groups: Cases) -> RunWarning | None:
    """Warn if the first round differs from the rest, because something was not set up yet."""
    first, *rest = _cycles(groups) or [1.0]
    if len(rest) < stats.ENOUGH_ROUNDS - 1:
        return None
    offset = first / statistics.median(rest) - 1
    if abs(offset) < max(MIN_OFFSET, 3 * stats.spread(rest)):
        return None
    difference = f"{abs(offset):.0%} {'faster' if offset > 0 else 'slower'}"
    return RunWarning(
        "first-round",
        f"the first round was {difference} than the rest: something was not set up yet",
        hints=("give --warmup 2",),
        values={"offset": offset},
    )


def _rates(rounds: Sequence[Record]) -> list[float]:
    return [record.samples_per_s for record in rounds]


def _cycles(groups: Cases) -> list[float]:
    """Return, for each round that all cases have, the mean of their rates over their medians."""
    parts = []
    for rounds in groups.values():
        in_order = sorted(rounds, key=lambda r: (r.time, r.round))
        middle = statistics.median(_rates(rounds))
        parts.append([rate / middle for rate in _rates(in_order)])
    return [statistics.geometric_mean(cycle) for cycle in zip(*parts, strict=False)]


def _least_chance(rounds: int) -> float:
    """Return the smallest p-value that Kendall's test can give for so many rounds."""
    return stats.trend(range(1, rounds + 1))[1]


CHECKS: tuple[Check, ...] = (_few_rounds, _short_rounds, _spread, _drift, _first_round)
