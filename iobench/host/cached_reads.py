"""Bandwidth of reading a file that is not in memory through the page cache, and the time to open it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from iobench.host import page_cache
from iobench.host.hardware_limits import SECONDS, Limit
from iobench.host.maps import GuardedMap
from iobench.host.memory import touched_array

PIECE_BYTES = 1 << 20
OPENINGS = 20


def plain_reads(file: Path, seconds: float = SECONDS) -> Limit:
    """Measure plain reads in order, one after the other; ColdCacheUnavailable if the file stays in memory."""
    page_cache.evict([file])
    buffer = touched_array(PIECE_BYTES).data
    with open(file, "rb", buffering=0) as opened:
        rate = _rate(lambda start: opened.readinto(buffer), file, seconds)
    return Limit("disk", "in order, through the page cache", rate)


def mapped_reads(file: Path, seconds: float = SECONDS) -> Limit:
    """Measure copies in order out of a memory map; ColdCacheUnavailable if the file stays in memory."""
    page_cache.evict([file])
    buffer, mapped = touched_array(PIECE_BYTES), GuardedMap([file])

    def copy(start: int) -> int:
        piece = mapped.bytes[start : start + PIECE_BYTES]
        buffer[: len(piece)] = piece
        mapped.guard.check()
        return len(piece)

    return Limit("disk", "in order, through a memory map", _rate(copy, file, seconds))


def opening_s(file: Path) -> float:
    """Return the median time in seconds to open a file, look at its size and close it."""
    taken = []
    for _ in range(OPENINGS):
        began = time.perf_counter()
        with open(file, "rb") as opened:
            opened.seek(0, 2)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def _rate(read: Callable[[int], int], file: Path, seconds: float) -> float:
    """Return the bytes per second of `read`, called with the start of each piece, which returns its bytes."""
    began, done, size = time.perf_counter(), 0, file.stat().st_size
    while done < size and time.perf_counter() - began < seconds:
        done += read(done)
    return done / (time.perf_counter() - began)
