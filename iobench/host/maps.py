"""Map any number of files side by side into one range of memory."""

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

from iobench.host.bus_errors import MapGuard
from iobench.host.memory import HUGE_PAGE, MAP_NORESERVE, PAGE, Bytes, libc, map_memory, unmap_memory

_RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
_SHARED_FIXED = mmap.MAP_SHARED | 0x10  # MAP_FIXED
BETWEEN = 128 << 10  # minimum gap between two files, in bytes


def side_by_side(sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    """Lay out files of these sizes in one address range.

    Returns the start of each file and, as one item more, the end of the range (int64, bytes). Large
    files start at a huge page, so that the kernel can map them with huge pages.
    """
    starts, at = [], 0
    for size in sizes:
        unit = HUGE_PAGE if size >= HUGE_PAGE else PAGE
        at = -(-at // unit) * unit
        starts.append(at)
        at = -(-(at + size) // PAGE) * PAGE + BETWEEN
    return np.array([*starts, at], np.int64)


class GuardedMap:
    """Files mapped read-only into one range of memory, guarded against bus errors.

    Call `guard.check()` after each access: it raises OSError if a page was unreadable.

    Parameters
    ----------
    paths : sequence of Path
        The files.
    sizes : sequence of int, optional
        Expected sizes in bytes; the files' current ones by default. If a file is shorter, its missing
        pages are unreadable.

    Attributes
    ----------
    bytes : uint8 array
        The whole range, zeros between files. Unmapped when the last view of it is gone.
    starts : int64 array
        Start of each file in `bytes`, as from `side_by_side`.
    """

    def __init__(self, paths: Sequence[Path], sizes: Sequence[int] | None = None) -> None:
        sizes = [path.stat().st_size for path in paths] if sizes is None else sizes
        self.starts = side_by_side(sizes)
        length = int(self.starts[-1]) + HUGE_PAGE
        reserved = map_memory(None, length, _RESERVED)
        begin = -(-reserved // HUGE_PAGE) * HUGE_PAGE
        memory = (ctypes.c_ubyte * int(self.starts[-1])).from_address(begin)
        self.guard = _SideBySideGuard(paths, [begin + start for start in self.starts.tolist()])
        gone = weakref.finalize(memory, _unmap, self.guard, reserved, length)
        gone.atexit = False
        for path, size, start in zip(paths, sizes, self.starts.tolist(), strict=False):
            if size:
                _map(path, begin + start, size)
        self.bytes: Bytes = np.frombuffer(memoryview(memory), np.uint8)
        self._begin = begin

    def advise_random(self) -> None:
        """Tell the kernel to read only the pages that are accessed, without readahead."""
        libc.madvise(ctypes.c_void_p(self._begin), ctypes.c_size_t(len(self.bytes)), mmap.MADV_RANDOM)


class _SideBySideGuard(MapGuard):
    """Guard over all files of a GuardedMap; a file that fails is replaced by zeros as a whole."""

    def __init__(self, paths: Sequence[Path], edges: list[int]) -> None:
        self._paths, self._edges = paths, edges
        super().__init__(paths[0], edges[0], edges[-1] - edges[0])

    def lost_range(self, address: int) -> tuple[Path, int, int]:
        """Return the file mapped at an address, and where it starts and ends."""
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
