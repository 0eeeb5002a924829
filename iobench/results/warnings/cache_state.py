"""Warnings about caches: warm cases not read from memory, cold cases not read from disk."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from iobench.base.thresholds import (
    BACKED_BYTES_PER_S,
    LARGER_THAN_MEMORY,
    LOWER_CACHE_SPEEDUP,
    OPENING_SHARE,
    PART_WARMED,
    WARM_LIMIT,
)
from iobench.base.units import bytes_text, counted, rate_text
from iobench.results import cases
from iobench.results.record import Record
from iobench.results.run_warning import Cases, Check, RunWarning, warm_cases

OVERREAD = 1.25  # of what a part delivered, from which on an epoch would find much of it in memory


def _lower_cache(groups: Cases) -> RunWarning | None:
    """Warn if a cache below this kernel, such as a hypervisor's, served reads of cold rounds."""
    probes = [
        r.cache.lower_cache_p50_s for rounds in groups.values() for r in rounds if r.cache.lower_cache_p50_s
    ]
    if not probes or len(probes[0]) != 2 or not probes[0][0] > LOWER_CACHE_SPEEDUP * probes[0][1]:
        return None
    first, second = probes[0]
    return RunWarning(
        "lower-cache",
        "a cache below this kernel keeps data: reads after the first round may have come from it",
        hints=("prepare more data than it can hold", "treat the figures as cold for this kernel only"),
        values={"first_p50_s": first, "second_p50_s": second},
    )


def _remote_cache(groups: Cases) -> RunWarning | None:
    """Warn that another machine or program may have served cold rounds from its memory."""
    disks = {
        key: rounds[0].machine.disk
        for key, rounds in groups.items()
        if rounds[0].cache.mode == "cold" and rounds[0].machine.disk.remote
    }
    if not disks:
        return None
    system = str(next(iter(disks.values())).file_system)
    return RunWarning(
        "remote-cache",
        f"cold for this machine only: {system} may have read from a cache of its own or of its server",
        list(disks),
        ("prepare more data than it can hold", "empty that cache before"),
        {"file_system": system},
    )


def _slow_memory(groups: Cases) -> RunWarning | None:
    """Warn if the hypervisor had to provide memory again before cold rounds, which takes time."""
    rates = [r.cache.prefault_bytes_per_s or BACKED_BYTES_PER_S for rounds in groups.values() for r in rounds]
    slow = sum(rate < BACKED_BYTES_PER_S for rate in rates)
    if not slow:
        return None
    return RunWarning(
        "hypervisor-memory",
        f"the hypervisor provided memory at {rate_text(min(rates))}B/s before {slow} of "
        f"{counted(len(rates), 'round')}; iobench pays this before the clock starts, your training will pay "
        "it during reads",
        hints=("keep the machine busy", "give the virtual machine reserved memory"),
        values={"rounds": len(rates), "affected": slow, "bytes_per_s": min(rates)},
    )


def _not_warm(groups: Cases) -> RunWarning | None:
    """Warn if less than 99 % of the files' pages were in memory before a round of a warm case."""
    residency = {
        key: _least_residency(rounds)
        for key, rounds in warm_cases(groups).items()
        if rounds[0].cache.method != LARGER_THAN_MEMORY
    }
    low = {key: value for key, value in residency.items() if value is not None and value < WARM_LIMIT}
    if not low:
        return None
    return RunWarning(
        "low-residency",
        f"not warm: only {min(low.values()):.0%} of the pages were in memory before a round",
        list(low),
        ("free memory", "prepare less data"),
        {"residency": min(low.values())},
    )


def _larger_than_memory(groups: Cases) -> RunWarning | None:
    """Warn if the files of a warm case do not fit in memory, so that there is no warm state of them."""
    large = [
        key for key, rounds in warm_cases(groups).items() if rounds[0].cache.method == LARGER_THAN_MEMORY
    ]
    message = "not warm: the data do not fit in memory, so the rounds read what was not in it from disk"
    hints = ("give --cache cold", "prepare less data")
    return RunWarning("larger-than-memory", message, large, hints) if large else None


def _cold_part(groups: Cases) -> RunWarning | None:
    """Warn if parts of a cold epoch read more than they delivered, which the epoch would find in memory."""
    read = {
        key: statistics.median(map(_overread, rounds))
        for key, rounds in groups.items()
        if rounds[0].cache.mode in ("cold", "cold object")
        and rounds[0].case.get("order") != "sequential"
        and (rounds[0].dataset.stored_bytes or 0) < rounds[0].machine.memory_bytes
    }
    more = {key: factor for key, factor in read.items() if factor > OVERREAD}
    if not more:
        return None
    return RunWarning(
        "cold-part",
        f"rounds are parts of a cold epoch, and read up to {max(more.values()):.1f} times what they "
        "delivered: a whole epoch is faster, since its later batches find that in memory",
        list(more),
        ("give a longer --round-seconds",),
        {"read_per_delivered": max(more.values())},
    )


def _overread(record: Record) -> float:
    """Return the share of the files that a part read, over the share of the samples that it delivered."""
    partial, stored = record.timing.partial, record.dataset.stored_bytes
    read = record.requests.fetched_bytes if record.requests else record.disk.read_bytes
    if partial is None or not stored or read is None:
        return 0.0
    return read / stored * partial.epoch_samples / record.timing.samples


def _rejected_pieces(groups: Cases) -> RunWarning | None:
    """Warn if the disk of an object cache did not take pieces, for want of space or for another reason."""
    rejected = {
        key: count
        for key, rounds in groups.items()
        if (count := sum(one.requests.rejected_pieces for one in rounds if one.requests))
    }
    if not rejected:
        return None
    return RunWarning(
        "object-cache-disk",
        f"the disk of the object cache did not take {counted(sum(rejected.values()), 'piece')}: the cache "
        "held less than it was allowed to",
        list(rejected),
        ("free space on the disk of --data-dir", "give a smaller --object-cache"),
        {"pieces": sum(rejected.values())},
    )


def _unknown_residency(groups: Cases) -> RunWarning | None:
    """Warn if the residency of a warm case's files cannot be read by this user."""
    unknown = [
        key
        for key, rounds in warm_cases(groups).items()
        if _least_residency(rounds) is None
        and rounds[0].case["format"] != cases.OWN_DATA
        and rounds[0].cache.method not in (LARGER_THAN_MEMORY, PART_WARMED)
    ]
    if not unknown:
        return None
    message = "residency unknown: the kernel does not show it to this user"
    return RunWarning("unknown-residency", message, unknown, ("run as the owner of the files",))


def _mixed_eviction(groups: Cases) -> RunWarning | None:
    """Warn if some hosts emptied the whole page cache, others evicted only the dataset's files."""
    methods = {
        key: record.cache.method
        for key, rounds in groups.items()
        for record in rounds
        if record.cache.mode == "cold" and ", " in record.cache.method
    }
    if not methods:
        return None
    method = next(iter(methods.values()))
    return RunWarning(
        "mixed-eviction",
        f"the page cache was emptied in different ways ({method}): only root can drop all of it; elsewhere "
        "the file system's metadata stayed in memory",
        list(methods),
        ("run as root on all hosts, or on none",),
        {"method": method},
    )


def _page_reclaim(groups: Cases) -> RunWarning | None:
    """Warn if a warm case read from disk, because the kernel reclaimed pages during the run."""
    allowed = 1 - WARM_LIMIT
    read = {
        key: statistics.median(r.disk.read_bytes or 0 for r in rounds)
        for key, rounds in warm_cases(groups).items()
        if (_least_residency(rounds) or 0) >= WARM_LIMIT
        and statistics.median((r.disk.read_bytes or 0) / r.timing.logical_bytes for r in rounds) > allowed
    }
    if not read:
        return None
    return RunWarning(
        "page-reclaim",
        f"a warm round read {bytes_text(max(read.values()))} from disk: pages were reclaimed meanwhile",
        list(read),
        ("free memory",),
        {"read_bytes": max(read.values())},
    )


def _read_on_open(groups: Cases) -> RunWarning | None:
    """Warn if opening read the data of a cold case before the clock started."""
    read = {key: share for key, rounds in groups.items() if (share := read_on_open(rounds))}
    if not read:
        return None
    return RunWarning(
        "read-on-open",
        f"not cold: opening read up to {max(read.values()):.0%} of the data before the clock started, "
        "so these cases are not in the verdict",
        list(read),
        ("measure more data", "add the time of opening, which --json and the report show"),
        {"share": max(read.values())},
    )


def read_on_open(rounds: Sequence[Record]) -> float:
    """Return the share of the data that opening read in cold rounds; 0 where so little that they are cold."""
    if rounds[0].cache.mode != "cold":
        return 0.0
    shares = [(r.disk.opening_bytes or 0) * r.timing.epochs / r.timing.logical_bytes for r in rounds]
    share = statistics.median(shares)
    return share if share > OPENING_SHARE else 0.0


def _least_residency(rounds: Sequence[Record]) -> float | None:
    values = [record.cache.residency for record in rounds]
    known = [value for value in values if value is not None]
    return min(known) if len(known) == len(values) else None


CHECKS: tuple[Check, ...] = (
    _lower_cache,
    _remote_cache,
    _slow_memory,
    _not_warm,
    _larger_than_memory,
    _cold_part,
    _rejected_pieces,
    _unknown_residency,
    _mixed_eviction,
    _page_reclaim,
    _read_on_open,
)
