"""Whether a warm case came out of memory and a cold one from the disk."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from iobench.base.thresholds import BACKED_BYTES_PER_S, CACHED_BELOW, OPENING_PART, WARM_LIMIT
from iobench.base.units import bytes_text, rate_text
from iobench.results import cases
from iobench.results.record import Record
from iobench.results.warnings._warning import Cases, Check, RunWarning, warm


def _below(groups: Cases) -> RunWarning | None:
    medians = [r.cache.below_s for rounds in groups.values() for r in rounds if r.cache.below_s]
    if not medians or len(medians[0]) != 2 or not medians[0][0] > CACHED_BELOW * medians[0][1]:
        return None
    return RunWarning(
        "below",
        "a layer below this kernel keeps what was read, so reads after the first round may have come from "
        "its memory; prepare more data than it can hold, or read the figures as cold for this kernel only",
    )


def _backed(groups: Cases) -> RunWarning | None:
    rates = [r.cache.prefault_bytes_per_s or BACKED_BYTES_PER_S for each in groups.values() for r in each]
    slow = sum(rate < BACKED_BYTES_PER_S for rate in rates)
    if not slow:
        return None
    return RunWarning(
        "backed",
        f"before {slow} of {len(rates)} rounds the hypervisor had to provide memory anew, at "
        f"{rate_text(min(rates))}B/s; iobench had that done untimed, as far as it can, but a training "
        "job pays for it: keep the machine busy, or give it memory of its own",
    )


def _not_warm(groups: Cases) -> RunWarning | None:
    least = {key: _least_residency(rounds) for key, rounds in warm(groups).items()}
    short = {key: value for key, value in least.items() if value is not None and value < WARM_LIMIT}
    if not short:
        return None
    part = f"only {min(short.values()):.0%} of the pages were in memory before a round, so it was not warm"
    return RunWarning("residency", f"{part}; free memory or prepare less data", list(short))


def _unverified(groups: Cases) -> RunWarning | None:
    unknown = [
        key
        for key, rounds in warm(groups).items()
        if _least_residency(rounds) is None and rounds[0].case["format"] != cases.OWN_DATA
    ]
    said = "whether the files were in memory cannot be found out; run as their owner"
    return RunWarning("unverified", said, unknown) if unknown else None


def _evicted_differently(groups: Cases) -> RunWarning | None:
    """Hosts one of which could empty its whole page cache, and another one that of the files alone."""
    ways = {
        key: record.cache.method
        for key, rounds in groups.items()
        for record in rounds
        if record.cache.mode == "cold" and ", " in record.cache.method
    }
    if not ways:
        return None
    said = f"not every host's page cache was emptied in the same way ({next(iter(ways.values()))})"
    return RunWarning(
        "eviction",
        f"{said}; only root can drop all of it, elsewhere the data's files alone were evicted, and what "
        "the file system knows of them stayed in memory: run as root on all hosts, or on none",
        list(ways),
    )


def _warm_from_disk(groups: Cases) -> RunWarning | None:
    allowed = 1 - WARM_LIMIT
    read = {
        key: statistics.median(r.disk.read_bytes or 0 for r in rounds)
        for key, rounds in warm(groups).items()
        if (_least_residency(rounds) or 0) >= WARM_LIMIT
        and statistics.median((r.disk.read_bytes or 0) / r.timing.logical_bytes for r in rounds) > allowed
    }
    if not read:
        return None
    amount = f"a warm round read {bytes_text(max(read.values()))} from disk"
    return RunWarning("reclaimed", f"{amount}: something takes pages out of memory; free memory", list(read))


def _read_on_opening(groups: Cases) -> RunWarning | None:
    """Cold cases that read the data before the clock starts, as a map does that is looked at all over."""
    parts = {
        key: statistics.median(
            (r.disk.opening_bytes or 0) * r.timing.epochs / r.timing.logical_bytes for r in rounds
        )
        for key, rounds in groups.items()
        if rounds[0].cache.mode == "cold"
    }
    read = {key: part for key, part in parts.items() if part > OPENING_PART}
    if not read:
        return None
    return RunWarning(
        "opening",
        f"opening read up to {max(read.values()):.0%} of the data before the clock started, and epochs found "
        "that in memory: no figure of a cold cache; measure more data, or add the time of opening, which "
        "--json and the report have",
        list(read),
    )


def _least_residency(rounds: Sequence[Record]) -> float | None:
    values = [record.cache.residency for record in rounds]
    known = [value for value in values if value is not None]
    return min(known) if len(known) == len(values) else None


CHECKS: tuple[Check, ...] = (
    _below,
    _backed,
    _not_warm,
    _unverified,
    _evicted_differently,
    _warm_from_disk,
    _read_on_opening,
)
