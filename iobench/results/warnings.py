"""Reasons to warning the figures of a run: what happened, why that matters, and which option helps."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from iobench.host.cache import BACKED_BYTES_PER_S, WARM_LIMIT
from iobench.host.limits import Below
from iobench.results import stats
from iobench.results.record import Record
from iobench.units import bytes_text, rate_text, seconds_text

SPREAD = 0.10  # robust standard deviation over median
DRIFT = 0.10  # from the first round to the last
CHANCE = 0.05  # of as clear a drift in rounds that only scatter
FIRST = 0.10  # a first round this far from the rest, and three times as far as these scatter
STEAL = 0.01  # of the processors' time
NEIGHBOURS = 0.05  # of the data, read from the same disk by others
SHORT_S = 0.2
SPANS = 0.01  # of an epoch
MOST_NAMED = 3

Cases = Mapping[str, Sequence[Record]]


@dataclass(frozen=True)
class RunWarning:
    """One reason to warning; `cases` are those concerned, none where all are."""

    kind: str
    said: str
    cases: list[str] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """The warning in one line."""
        if not self.cases:
            return self.said
        more = len(self.cases) - MOST_NAMED
        named = "; ".join(self.cases[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        return f"{named}: {self.said}"


def warnings(records: Sequence[Record]) -> list[RunWarning]:
    """Everything that speaks against taking these records of one run at their word."""
    cases: dict[str, list[Record]] = {}
    for record in records:
        cases.setdefault(record.case["label"], []).append(record)
    found = (check(cases) for check in _CHECKS)
    return [warning for warning in found if warning is not None] if cases else []


def _few_rounds(cases: Cases) -> RunWarning | None:
    fewest = min(map(len, cases.values()))
    if fewest >= stats.ENOUGH:
        return None
    rounds = f"{fewest} round{'s' * (fewest != 1)}"
    return RunWarning(
        "rounds", f"{rounds}: too few for a sure interval; give --rounds {stats.ENOUGH} or more"
    )


def _short_epochs(cases: Cases) -> RunWarning | None:
    times = {label: statistics.median(r.epoch_s for r in rounds) for label, rounds in cases.items()}
    short = [label for label, time in times.items() if time < SHORT_S]
    if not short:
        return None
    said = f"epochs of {seconds_text(min(times.values()))} and up, below {seconds_text(SHORT_S)}, measure "
    return RunWarning("short", said + "the moment as much as the case; prepare more data (--size)", short)


def _spread(cases: Cases) -> RunWarning | None:
    spreads = {label: stats.spread(_rates(rounds)) for label, rounds in cases.items() if len(rounds) > 2}
    wide = [label for label, spread in spreads.items() if spread > SPREAD]
    if not wide:
        return None
    most = f"rounds differ by up to {max(spreads.values()):.0%} (robust standard deviation)"
    return RunWarning("spread", f"{most}; stop other work, prepare more data, or give more --rounds", wide)


def _drift(cases: Cases) -> RunWarning | None:
    """All cases together, because what changes in a machine changes for all; the first round is apart."""
    cycles = _cycles(cases)[1:]
    if len(cycles) < stats.ENOUGH - 1:
        return None
    change, chance = stats.trend(cycles)
    if abs(change) < DRIFT or chance > max(CHANCE, _least_chance(len(cycles))):
        return None
    course = f"rounds got {'faster' if change > 0 else 'slower'} by {abs(change):.0%} while the run went on"
    cold = next(iter(cases.values()))[0].cache["mode"] == "cold"
    if cold and change < 0:
        why = "the disk may allow a burst and then throttle; wait, and give --rounds 20 to see where it ends"
        return RunWarning("throttled", f"{course}: {why}")
    return RunWarning("drift", f"{course}: the machine warms up, slows down or shares; wait and run again")


def _first_round(cases: Cases) -> RunWarning | None:
    first, *rest = _cycles(cases) or [1.0]
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


def _below(cases: Cases) -> RunWarning | None:
    snapshots = [r.cache["below_s"] for rounds in cases.values() for r in rounds if r.cache.get("below_s")]
    if not snapshots or not Below(*snapshots[0]).seen:
        return None
    return RunWarning(
        "below",
        "a layer below this kernel keeps what was read, so reads after the first round may have come from "
        "its memory; prepare more data than it can hold, or read the figures as cold for this kernel only",
    )


def _backed(cases: Cases) -> RunWarning | None:
    rates = [
        r.cache.get("prefault_bytes_per_s") or BACKED_BYTES_PER_S for each in cases.values() for r in each
    ]
    slow = sum(rate < BACKED_BYTES_PER_S for rate in rates)
    if not slow:
        return None
    return RunWarning(
        "backed",
        f"before {slow} of {len(rates)} rounds the host had to back memory first, at "
        f"{rate_text(min(rates))}B/s; iobench had that done outside the clock, as far as it can, a training "
        "job pays for it: keep the machine busy, or give it memory of its own",
    )


def _not_warm(cases: Cases) -> RunWarning | None:
    least = {label: _least_residency(rounds) for label, rounds in _warm(cases).items()}
    short = {label: value for label, value in least.items() if value is not None and value < WARM_LIMIT}
    if not short:
        return None
    part = f"only {min(short.values()):.0%} of the files was in memory before a round, so it was not warm"
    return RunWarning("residency", f"{part}; free memory or prepare less data", list(short))


def _unverified(cases: Cases) -> RunWarning | None:
    unknown = [label for label, rounds in _warm(cases).items() if _least_residency(rounds) is None]
    said = "nobody can tell if the files were in memory; run as their owner"
    return RunWarning("unverified", said, unknown) if unknown else None


def _warm_from_disk(cases: Cases) -> RunWarning | None:
    allowed = 1 - WARM_LIMIT
    read = {
        label: statistics.median(r.disk_bytes or 0 for r in rounds)
        for label, rounds in _warm(cases).items()
        if (_least_residency(rounds) or 0) >= WARM_LIMIT
        and statistics.median((r.disk_bytes or 0) / r.logical_bytes for r in rounds) > allowed
    }
    if not read:
        return None
    amount = f"a warm round read {bytes_text(max(read.values()))} from disk"
    return RunWarning("reclaimed", f"{amount}: something takes pages out of memory; free memory", list(read))


def _steal(cases: Cases) -> RunWarning | None:
    parts = {
        label: statistics.median((r.steal_s or 0) / r.epoch_s / r.machine.get("cores", 1) for r in rounds)
        for label, rounds in cases.items()
    }
    robbed = [label for label, part in parts.items() if part > STEAL]
    if not robbed:
        return None
    took = f"the hypervisor gave {max(parts.values()):.0%} of the processors' time to others"
    return RunWarning("steal", f"{took}; run again at another hour, or give more --rounds", robbed)


def _neighbours(cases: Cases) -> RunWarning | None:
    parts = {label: statistics.median(map(_read_by_others, rounds)) for label, rounds in cases.items()}
    busy = [label for label, part in parts.items() if part > NEIGHBOURS]
    if not busy:
        return None
    amount = f"others read as much as {max(parts.values()):.0%} of the data from the same disk"
    return RunWarning(
        "neighbours", f"{amount} meanwhile; see who does with 'pidstat -d 1', and stop it", busy
    )


def _beaten_limit(cases: Cases) -> RunWarning | None:
    beaten = [
        label
        for label, rounds in cases.items()
        if (limits := [r.limit["bytes_per_s"] for r in rounds if r.limit])
        and statistics.median(r.bytes_per_s for r in rounds) > max(limits)
    ]
    said = "faster than the limit measured for it, also when that was measured again; give more --rounds"
    return RunWarning("limit", said, beaten) if beaten else None


def _costly_spans(cases: Cases) -> RunWarning | None:
    costs = {
        label: statistics.median((r.spans_s or 0) / r.epoch_s for r in rounds)
        for label, rounds in cases.items()
    }
    costly = [label for label, cost in costs.items() if cost > SPANS]
    said = f"--profile itself took {max(costs.values()):.1%} of the epoch; give a larger --batch-size"
    return RunWarning("profile", said, costly) if costly else None


_CHECKS: tuple[Callable[[Cases], RunWarning | None], ...] = (
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
    _steal,
    _neighbours,
    _beaten_limit,
    _costly_spans,
)


def _rates(rounds: Sequence[Record]) -> list[float]:
    return [record.samples_per_s for record in rounds]


def _cycles(cases: Cases) -> list[float]:
    """For each round that all cases have, how fast they were, each as a part of its own median."""
    middles = {label: statistics.median(_rates(rounds)) for label, rounds in cases.items()}
    together = zip(
        *(sorted(rounds, key=lambda r: (r.time, r.round)) for rounds in cases.values()), strict=False
    )
    return [
        statistics.geometric_mean(r.samples_per_s / middles[r.case["label"]] for r in cycle)
        for cycle in together
    ]


def _least_chance(rounds: int) -> float:
    """What Kendall's test gives for so many rounds that all rise: it cannot be surer."""
    return stats.trend(range(1, rounds + 1))[1]


def _warm(cases: Cases) -> Cases:
    return {label: rounds for label, rounds in cases.items() if rounds[0].cache["mode"] == "warm"}


def _least_residency(rounds: Sequence[Record]) -> float | None:
    values = [record.cache["residency"] for record in rounds]
    return None if None in values else min(values)


def _read_by_others(record: Record) -> float:
    """Bytes that others read from the same disk, per logical byte."""
    if record.device_disk_bytes is None or record.disk_bytes is None:
        return 0.0
    return max(0, record.device_disk_bytes - record.disk_bytes) / record.logical_bytes
