"""Reasons to doubt the figures of a run: what happened, why that matters, and which option helps."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from iobench import stats
from iobench.cache import BACKED_BYTES_PER_S, WARM_LIMIT
from iobench.limits import Below
from iobench.record import Record
from iobench.units import bytes_text, rate_text, seconds_text

SPREAD = 0.10  # robust standard deviation over median
DRIFT = 0.10  # from the first round to the last
CHANCE = 0.05  # of as clear a drift in rounds that only scatter
FIRST = 0.10  # a first round this far from the rest, and three times as far as these scatter
STOLEN = 0.01  # of the processors' time
NEIGHBOURS = 0.05  # of the data, read from the same disk by others
SHORT_S = 0.2
SPANS = 0.01  # of an epoch
MOST_NAMED = 3

Arms = Mapping[str, Sequence[Record]]


@dataclass(frozen=True)
class Doubt:
    """One reason to doubt; `arms` are those concerned, none where all are."""

    kind: str
    said: str
    arms: list[str] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """The doubt in one line."""
        if not self.arms:
            return self.said
        more = len(self.arms) - MOST_NAMED
        named = "; ".join(self.arms[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        return f"{named}: {self.said}"


def doubts(records: Sequence[Record]) -> list[Doubt]:
    """Everything that speaks against taking these records of one run at their word."""
    arms: dict[str, list[Record]] = {}
    for record in records:
        arms.setdefault(record.arm["label"], []).append(record)
    found = (check(arms) for check in _CHECKS)
    return [doubt for doubt in found if doubt is not None] if arms else []


def _few_rounds(arms: Arms) -> Doubt | None:
    fewest = min(map(len, arms.values()))
    if fewest >= stats.ENOUGH:
        return None
    rounds = f"{fewest} round{'s' * (fewest != 1)}"
    return Doubt("rounds", f"{rounds}: too few for a sure interval; give --rounds {stats.ENOUGH} or more")


def _short_epochs(arms: Arms) -> Doubt | None:
    times = {label: statistics.median(r.epoch_s for r in rounds) for label, rounds in arms.items()}
    short = [label for label, time in times.items() if time < SHORT_S]
    if not short:
        return None
    said = f"epochs of {seconds_text(min(times.values()))} and up, below {seconds_text(SHORT_S)}, measure "
    return Doubt("short", said + "the moment as much as the arm; prepare more data (--size)", short)


def _spread(arms: Arms) -> Doubt | None:
    spreads = {label: stats.spread(_rates(rounds)) for label, rounds in arms.items() if len(rounds) > 2}
    wide = [label for label, spread in spreads.items() if spread > SPREAD]
    if not wide:
        return None
    most = f"rounds differ by up to {max(spreads.values()):.0%} (robust standard deviation)"
    return Doubt("spread", f"{most}; stop other work, prepare more data, or give more --rounds", wide)


def _drift(arms: Arms) -> Doubt | None:
    """All arms together, because what changes in a machine changes for all; the first round is apart."""
    cycles = _cycles(arms)[1:]
    if len(cycles) < stats.ENOUGH - 1:
        return None
    change, chance = stats.trend(cycles)
    if abs(change) < DRIFT or chance > max(CHANCE, _least_chance(len(cycles))):
        return None
    course = f"rounds got {'faster' if change > 0 else 'slower'} by {abs(change):.0%} while the run went on"
    cold = next(iter(arms.values()))[0].cache["mode"] == "cold"
    if cold and change < 0:
        why = "the disk may allow a burst and then throttle; wait, and give --rounds 20 to see where it ends"
        return Doubt("throttled", f"{course}: {why}")
    return Doubt("drift", f"{course}: the machine warms up, slows down or shares; wait and run again")


def _first_round(arms: Arms) -> Doubt | None:
    first, *rest = _cycles(arms) or [1.0]
    if len(rest) < stats.ENOUGH - 1:
        return None
    middle = statistics.median(rest)
    away = first / middle - 1
    if abs(away) < max(FIRST, 3 * stats.spread(rest)):
        return None
    than = f"{abs(away):.0%} {'faster' if away > 0 else 'slower'} than the rest"
    return Doubt("first round", f"the first round was {than}: something was not yet set up; give --warmup 2")


def _below(arms: Arms) -> Doubt | None:
    looks = [r.cache["below_s"] for rounds in arms.values() for r in rounds if r.cache.get("below_s")]
    if not looks or not Below(*looks[0]).seen:
        return None
    return Doubt(
        "below",
        "a layer below this kernel keeps what was read, so reads after the first round may have come from "
        "its memory; prepare more data than it can hold, or read the figures as cold for this kernel only",
    )


def _backed(arms: Arms) -> Doubt | None:
    rates = [
        r.cache.get("prefault_bytes_per_s") or BACKED_BYTES_PER_S for each in arms.values() for r in each
    ]
    slow = sum(rate < BACKED_BYTES_PER_S for rate in rates)
    if not slow:
        return None
    return Doubt(
        "backed",
        f"before {slow} of {len(rates)} rounds the host had to back memory first, at "
        f"{rate_text(min(rates))}B/s; iobench had that done outside the clock, as far as it can, a training "
        "job pays for it: keep the machine busy, or give it memory of its own",
    )


def _not_warm(arms: Arms) -> Doubt | None:
    least = {label: _least_residency(rounds) for label, rounds in _warm(arms).items()}
    short = {label: value for label, value in least.items() if value is not None and value < WARM_LIMIT}
    if not short:
        return None
    part = f"only {min(short.values()):.0%} of the files was in memory before a round, so it was not warm"
    return Doubt("residency", f"{part}; free memory or prepare less data", list(short))


def _unverified(arms: Arms) -> Doubt | None:
    unknown = [label for label, rounds in _warm(arms).items() if _least_residency(rounds) is None]
    said = "nobody can tell if the files were in memory; run as their owner"
    return Doubt("unverified", said, unknown) if unknown else None


def _warm_from_disk(arms: Arms) -> Doubt | None:
    allowed = 1 - WARM_LIMIT
    read = {
        label: statistics.median(r.disk_bytes or 0 for r in rounds)
        for label, rounds in _warm(arms).items()
        if (_least_residency(rounds) or 0) >= WARM_LIMIT
        and statistics.median((r.disk_bytes or 0) / r.logical_bytes for r in rounds) > allowed
    }
    if not read:
        return None
    amount = f"a warm round read {bytes_text(max(read.values()))} from disk"
    return Doubt("reclaimed", f"{amount}: something takes pages out of memory; free memory", list(read))


def _stolen(arms: Arms) -> Doubt | None:
    parts = {
        label: statistics.median((r.stolen_s or 0) / r.epoch_s / r.machine.get("cores", 1) for r in rounds)
        for label, rounds in arms.items()
    }
    robbed = [label for label, part in parts.items() if part > STOLEN]
    if not robbed:
        return None
    took = f"the hypervisor gave {max(parts.values()):.0%} of the processors' time to others"
    return Doubt("stolen", f"{took}; run again at another hour, or give more --rounds", robbed)


def _neighbours(arms: Arms) -> Doubt | None:
    parts = {label: statistics.median(map(_read_by_others, rounds)) for label, rounds in arms.items()}
    busy = [label for label, part in parts.items() if part > NEIGHBOURS]
    if not busy:
        return None
    amount = f"others read as much as {max(parts.values()):.0%} of the data from the same disk"
    return Doubt("neighbours", f"{amount} meanwhile; see who does with 'pidstat -d 1', and stop it", busy)


def _beaten_limit(arms: Arms) -> Doubt | None:
    beaten = [
        label
        for label, rounds in arms.items()
        if (limits := [r.limit["bytes_per_s"] for r in rounds if r.limit])
        and statistics.median(r.bytes_per_s for r in rounds) > max(limits)
    ]
    said = "faster than the limit measured for it, also when that was measured again; give more --rounds"
    return Doubt("limit", said, beaten) if beaten else None


def _costly_spans(arms: Arms) -> Doubt | None:
    costs = {
        label: statistics.median((r.spans_s or 0) / r.epoch_s for r in rounds)
        for label, rounds in arms.items()
    }
    costly = [label for label, cost in costs.items() if cost > SPANS]
    said = f"--profile itself took {max(costs.values()):.1%} of the epoch; give a larger --batch-size"
    return Doubt("profile", said, costly) if costly else None


_CHECKS: tuple[Callable[[Arms], Doubt | None], ...] = (
    _few_rounds,
    _short_epochs,
    _spread,
    _drift,
    _first_round,
    _below,
    _backed,
    _not_warm,
    _unverified,
    _warm_from_disk,
    _stolen,
    _neighbours,
    _beaten_limit,
    _costly_spans,
)


def _rates(rounds: Sequence[Record]) -> list[float]:
    return [record.samples_per_s for record in rounds]


def _cycles(arms: Arms) -> list[float]:
    """For each round that all arms have, how fast they were, each as a part of its own median."""
    middles = {label: statistics.median(_rates(rounds)) for label, rounds in arms.items()}
    together = zip(
        *(sorted(rounds, key=lambda r: (r.time, r.round)) for rounds in arms.values()), strict=False
    )
    return [
        statistics.geometric_mean(r.samples_per_s / middles[r.arm["label"]] for r in cycle)
        for cycle in together
    ]


def _least_chance(rounds: int) -> float:
    """What Kendall's test gives for so many rounds that all rise: it cannot be surer."""
    return stats.trend(range(1, rounds + 1))[1]


def _warm(arms: Arms) -> Arms:
    return {label: rounds for label, rounds in arms.items() if rounds[0].cache["mode"] == "warm"}


def _least_residency(rounds: Sequence[Record]) -> float | None:
    values = [record.cache["residency"] for record in rounds]
    return None if None in values else min(values)


def _read_by_others(record: Record) -> float:
    """Bytes that others read from the same disk, per logical byte."""
    if record.device_disk_bytes is None or record.disk_bytes is None:
        return 0.0
    return max(0, record.device_disk_bytes - record.disk_bytes) / record.logical_bytes
