"""Files mapped to be read, any number of them side by side in one stretch of memory."""

from __future__ import annotations

import bisect
import ctypes
import mmap
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.host.bus_errors import MapGuard, map_memory, unmap_memory
from iobench.host.memory import HUGE_PAGE, MAP_NORESERVE, PAGE

_RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
_SHARED_FIXED = mmap.MAP_SHARED | 0x10  # MAP_FIXED
BETWEEN = 128 << 10  # bytes that are free between two files at least


def side_by_side(sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    """Where files of these sizes begin in one stretch of addresses, and where it ends.

    Large files begin with a huge page, so that the kernel can map them by such.
    """
    starts, at = [], 0
    for size in sizes:
        unit = HUGE_PAGE if size >= HUGE_PAGE else PAGE
        at = -(-at // unit) * unit
        starts.append(at)
        at = -(-(at + size) // PAGE) * PAGE + BETWEEN
    return np.array([*starts, at], np.int64)


class GuardedMap:
    """Files mapped to be read. `guard.check()` after each look: OSError where a page could not be read.

    `bytes` is all of the stretch: file number i begins at `starts[i]`, as `side_by_side` has it, with
    zeros between files. The maps go when the last view of it does. `sizes`: of the files by default;
    what a file has less of than that is a page that cannot be read.
    """

    def __init__(self, paths: Sequence[Path], sizes: Sequence[int] | None = None) -> None:
        sizes = [path.stat().st_size for path in paths] if sizes is None else sizes
        self.starts = side_by_side(sizes)
        length = int(self.starts[-1]) + HUGE_PAGE
        reserved = map_memory(None, length, _RESERVED)
        begin = -(-reserved // HUGE_PAGE) * HUGE_PAGE
        memory = (ctypes.c_ubyte * int(self.starts[-1])).from_address(begin)
        self.guard = _Guard(paths, [begin + start for start in self.starts.tolist()])
        gone = weakref.finalize(memory, _unmap, self.guard, reserved, length)
        gone.atexit = False
        for path, size, start in zip(paths, sizes, self.starts.tolist(), strict=False):
            if size:
                _map(path, begin + start, size)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(memoryview(memory), np.uint8)
        self._begin = begin

    def advise_random(self) -> None:
        """Have the kernel read no more than what is looked at."""
        advise = ctypes.CDLL(None).madvise
        advise(ctypes.c_void_p(self._begin), ctypes.c_size_t(len(self.bytes)), mmap.MADV_RANDOM)


class _Guard(MapGuard):
    """Watches all files of a map; of one that fails, the whole gives way to zeros."""

    def __init__(self, paths: Sequence[Path], edges: list[int]) -> None:
        self._paths, self._edges = paths, edges
        super().__init__(paths[0], edges[0], edges[-1] - edges[0])

    def stretch(self, address: int) -> tuple[Path, int, int]:
        """The file mapped there, and from where to where."""
        number = bisect.bisect(self._edges, address) - 1
        return self._paths[number], self._edges[number], self._edges[number + 1]


def _map(path: Path, address: int, size: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        map_memory(address, size, _SHARED_FIXED, descriptor)
    finally:
        os.close(descriptor)


def _unmap(guard: Any, address: int, length: int) -> None:
    guard.release()
    unmap_memory(address, length)
