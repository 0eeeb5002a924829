"""How sure the rounds are: how many, how long, how they scatter, and what course they took."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from iobench.base import thresholds
from iobench.base.units import seconds_text
from iobench.results import cases, stats
from iobench.results.record import Record
from iobench.results.warnings._warning import MORE_ROUNDS, Cases, Check, RunWarning, warm

SPREAD = 0.10  # robust standard deviation over median
DRIFT = 0.10  # from the first round to the last
CHANCE = 0.05  # of as clear a drift in rounds that only scatter
FIRST = 0.10  # a first round this far from the rest, and three times as far as these scatter


def _few_rounds(groups: Cases) -> RunWarning | None:
    fewest = min(map(len, groups.values()))
    if fewest >= stats.ENOUGH:
        return None
    rounds = f"{fewest} round{'s' * (fewest != 1)}"
    return RunWarning(
        "rounds", f"{rounds}: too few for a sure interval; give --rounds {stats.ENOUGH} or more"
    )


def _short_rounds(groups: Cases) -> RunWarning | None:
    """Of warm cases: a cold round is one epoch, however short."""
    groups = warm(groups)
    times = {key: statistics.median(r.timing.epochs_s for r in rounds) for key, rounds in groups.items()}
    short = [key for key, time in times.items() if time < thresholds.ROUND_S]
    if not short:
        return None
    least, enough = seconds_text(min(times[key] for key in short)), seconds_text(thresholds.ROUND_S)
    said = f"rounds as short as {least}, below {enough}, "
    return RunWarning(
        "short", said + "measure the moment as much as the case; prepare more data (--size)", short
    )


def _spread(groups: Cases) -> RunWarning | None:
    spreads = {key: stats.spread(_rates(rounds)) for key, rounds in groups.items() if len(rounds) > 2}
    wide = [key for key, spread in spreads.items() if spread > SPREAD]
    if not wide:
        return None
    most = f"rounds differ by up to {max(spreads.values()):.0%} (robust standard deviation)"
    return RunWarning("spread", f"{most}; stop other work, prepare more data, or {MORE_ROUNDS}", wide)


def _by_context(check: Check) -> Check:
    """The check, made of each context by itself: its rounds have a course of their own."""

    def run(groups: Cases) -> RunWarning | None:
        contexts = cases.by_context(record for rounds in groups.values() for record in rounds)
        for records in contexts:
            own = cases.by_case(records)
            if (found := check(own)) is not None:
                return RunWarning(found.kind, found.said, [] if len(contexts) == 1 else list(own))
        return None

    return run


@_by_context
def _drift(groups: Cases) -> RunWarning | None:
    """All cases together, because what changes in a machine changes for all; the first round is apart."""
    cycles = _cycles(groups)[1:]
    if len(cycles) < stats.ENOUGH - 1:
        return None
    change, chance = stats.trend(cycles)
    if abs(change) < DRIFT or chance > max(CHANCE, _least_chance(len(cycles))):
        return None
    course = f"rounds got {'faster' if change > 0 else 'slower'} by {abs(change):.0%} while the run went on"
    cold = next(iter(groups.values()))[0].cache.mode == "cold"
    if cold and change < 0:
        why = "the disk may allow a burst and then throttle; wait, and give --rounds 20 to see where it ends"
        return RunWarning("throttled", f"{course}: {why}")
    return RunWarning("drift", f"{course}: the machine warms up, slows down or is shared; wait and run again")


@_by_context
def _first_round(groups: Cases) -> RunWarning | None:
    first, *rest = _cycles(groups) or [1.0]
    if len(rest) < stats.ENOUGH - 1:
        return None
    middle = statistics.median(rest)
    away = first / middle - 1
    if abs(away) < max(FIRST, 3 * stats.spread(rest)):
        return None
    than = f"{abs(away):.0%} {'faster' if away > 0 else 'slower'} than the rest"
    return RunWarning(
        "first round", f"the first round was {than}: something was not yet set up; give --warmup 2"
    )


def _rates(rounds: Sequence[Record]) -> list[float]:
    return [record.samples_per_s for record in rounds]


def _cycles(groups: Cases) -> list[float]:
    """For each round that all cases have, how fast they were, each as a part of its own median."""
    parts = []
    for rounds in groups.values():
        in_order = sorted(rounds, key=lambda r: (r.time, r.round))
        middle = statistics.median(_rates(rounds))
        parts.append([rate / middle for rate in _rates(in_order)])
    return [statistics.geometric_mean(cycle) for cycle in zip(*parts, strict=False)]


def _least_chance(rounds: int) -> float:
    """What Kendall's test gives for so many rounds that all rise: it cannot be surer."""
    return stats.trend(range(1, rounds + 1))[1]


CHECKS: tuple[Check, ...] = (
    _few_rounds,
    _short_rounds,
    _spread,
    _drift,
    _first_round,
)
