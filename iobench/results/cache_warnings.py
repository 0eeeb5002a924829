"""Warnings about caches: warm cases not read from memory, cold cases not read from disk."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from iobench.base import thresholds
from iobench.base.thresholds import LARGER_THAN_MEMORY
from iobench.base.units import bytes_text, counted, rate_text
from iobench.results import cases
from iobench.results.record import Record, Rounds
from iobench.results.run_warning import CaseCheck, Check, RunWarning, above

OVERREAD = 1.25  # of what a part delivered, from which on an epoch would find much of it in memory


def _first(values: Iterable[Any]) -> Any:
    return next(iter(values))


def _lower_cache(groups: cases.Groups) -> RunWarning | None:
    """Warn if a cache below this kernel, such as a hypervisor's, served reads of cold rounds."""
    probes = [probe for one in groups.values() for r in one if (probe := r.cache.lower_cache_p50_s)]
    if not probes or len(probes[0]) != 2 or not probes[0][0] > thresholds.LOWER_CACHE_SPEEDUP * probes[0][1]:
        return None
    first, second = probes[0]
    return RunWarning(
        "lower-cache",
        "a cache below this kernel keeps data: reads after the first round may have come from it",
        hints=("prepare more data than it can hold", "treat the figures as cold for this kernel only"),
        values={"first_p50_s": first, "second_p50_s": second},
    )


@CaseCheck(
    "remote-cache",
    "cold for this machine only: {} may have read from a cache of its own or of its server",
    ("prepare more data than it can hold", "empty that cache before"),
    "file_system",
    text=str,
    worst=_first,
)
def _remote_cache(rounds: Rounds) -> str | None:
    """Warn that another machine or program may have served cold rounds from its memory."""
    disk = rounds[0].machine.disk
    return str(disk.file_system) if rounds[0].cache.mode == "cold" and disk.remote else None


def _slow_memory(groups: cases.Groups) -> RunWarning | None:
    """Warn if the hypervisor had to provide memory again before cold rounds, which takes time."""
    backed = thresholds.BACKED_BYTES_PER_S
    rates = [r.cache.prefault_bytes_per_s or backed for rounds in groups.values() for r in rounds]
    slow = sum(rate < backed for rate in rates)
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


@CaseCheck(
    "low-residency",
    "not warm: only {} of the pages were in memory before a round",
    ("free memory", "prepare less data"),
    "residency",
    worst=min,
)
def _not_warm(rounds: Rounds) -> float | None:
    """Warn if less than 99 % of the files' pages were in memory before a round of a warm case."""
    least = _least_residency(rounds)
    low = least is not None and least < thresholds.WARM_LIMIT
    return least if is_warm(rounds) and low and rounds[0].cache.method != LARGER_THAN_MEMORY else None


@CaseCheck(
    "larger-than-memory",
    "not warm: the data do not fit in memory, so the rounds read what was not in it from disk",
    ("give --cache cold", "prepare less data"),
)
def _larger_than_memory(rounds: Rounds) -> bool:
    """Warn if the files of a warm case do not fit in memory, so that there is no warm state of them."""
    return is_warm(rounds) and rounds[0].cache.method == LARGER_THAN_MEMORY


@CaseCheck(
    "cold-part",
    "rounds are parts of a cold epoch, and read up to {} times what they delivered: a whole epoch is faster, "
    "since its later batches find that in memory",
    ("give a longer --round-seconds",),
    "read_per_delivered",
    text="{:.1f}".format,
)
def _cold_part(rounds: Rounds) -> float | None:
    """Warn if parts of a cold epoch read more than they delivered, which the epoch would find in memory."""
    one = rounds[0]
    if one.cache.mode not in ("cold", "cold object") or one.case.get("order") == "sequential":
        return None
    if (one.dataset.stored_bytes or 0) >= one.machine.memory_bytes:
        return None
    return above(OVERREAD, statistics.median(map(_overread, rounds)))


def _overread(record: Record) -> float:
    """Return the share of the files that a part read, over the share of the samples that it delivered."""
    partial, stored = record.timing.partial, record.dataset.stored_bytes
    read = record.requests.fetched_bytes if record.requests else record.disk.read_bytes
    if partial is None or not stored or read is None:
        return 0.0
    return read / stored * partial.epoch_samples / record.timing.samples


@CaseCheck(
    "object-cache-disk",
    "the disk of the object cache did not take {}: the cache held less than it was allowed to",
    ("free space on the disk of --data-dir", "give a smaller --object-cache"),
    "pieces",
    text=lambda count: counted(count, "piece"),
    worst=sum,
)
def _rejected_pieces(rounds: Rounds) -> int | None:
    """Warn if the disk of an object cache did not take pieces, for want of space or for another reason."""
    return sum(one.requests.rejected_pieces for one in rounds if one.requests) or None


@CaseCheck(
    "unknown-residency",
    "residency unknown: the kernel does not show it to this user",
    ("run as the owner of the files",),
)
def _unknown_residency(rounds: Rounds) -> bool:
    """Warn if the residency of a warm case's files cannot be read by this user."""
    known = rounds[0].case["format"] != cases.OWN_DATA and rounds[0].cache.method not in (
        LARGER_THAN_MEMORY,
        thresholds.PART_WARMED,
    )
    return known and is_warm(rounds) and _least_residency(rounds) is None


@CaseCheck(
    "mixed-eviction",
    "the page cache was emptied in different ways ({}): only root can drop all of it; elsewhere the file "
    "system's metadata stayed in memory",
    ("run as root on all hosts, or on none",),
    "method",
    text=str,
    worst=_first,
)
def _mixed_eviction(rounds: Rounds) -> str | None:
    """Warn if some hosts emptied the whole page cache, others evicted only the dataset's files."""
    return next((r.cache.method for r in rounds if r.cache.mode == "cold" and ", " in r.cache.method), None)


@CaseCheck(
    "page-reclaim",
    "a warm round read {} from disk: pages were reclaimed meanwhile",
    ("free memory",),
    "read_bytes",
    text=bytes_text,
)
def _page_reclaim(rounds: Rounds) -> float | None:
    """Warn if a warm case read from disk, because the kernel reclaimed pages during the run."""
    if not is_warm(rounds) or (_least_residency(rounds) or 0) < thresholds.WARM_LIMIT:
        return None
    read = [r.disk.read_bytes or 0 for r in rounds]
    shares = [of / r.timing.logical_bytes for of, r in zip(read, rounds, strict=True)]
    return statistics.median(read) if statistics.median(shares) > 1 - thresholds.WARM_LIMIT else None


def read_on_open(rounds: Rounds) -> float | None:
    """Return the share of the data that opening read in cold rounds; None where they stayed cold."""
    if rounds[0].cache.mode != "cold":
        return None
    shares = [(r.disk.opening_bytes or 0) * r.timing.epochs / r.timing.logical_bytes for r in rounds]
    return above(thresholds.OPENING_SHARE, statistics.median(shares))


@CaseCheck(
    "read-on-open",
    "not cold: opening read up to {} of the data before the clock started, so these cases are not in the "
    "verdict",
    ("measure more data", "add the time of opening, which --json and the report show"),
    "share",
)
def _read_on_open(rounds: Rounds) -> float | None:
    """Warn if opening read the data of a cold case before the clock started."""
    return read_on_open(rounds)


def is_warm(rounds: Rounds) -> bool:
    """Return whether a case was read with a warm cache."""
    return rounds[0].cache.mode == "warm"


def _least_residency(rounds: Rounds) -> float | None:
    known = [residency for r in rounds if (residency := r.cache.residency) is not None]
    return min(known) if len(known) == len(rounds) else None


CHECKS: tuple[Check, ...] = (
    *(_lower_cache, _remote_cache, _slow_memory, _not_warm, _larger_than_memory, _cold_part),
    *(_rejected_pieces, _unknown_residency, _mixed_eviction, _page_reclaim, _read_on_open),
)
