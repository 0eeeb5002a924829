"""Map any number of files side by side into one range of memory, and turn bus errors in them into exceptions.

If a disk fails under a mapped file, or the file is truncated, the kernel answers an access to the page
with SIGBUS, which ends the process. The handler installed here replaces the lost pages by empty ones and
notes the file; `MapGuard.check` raises after the access. (libwayland guards shared memory in the same way.)
The signal is delivered to the accessing thread at that instruction: inside NumPy's copy, where Python code
may run. A bus error at any other address is passed on to the previous handler.

Without an error this costs nothing. Every alternative asks the kernel before or instead of each access and
costs more than the access: for rows of 512 bytes, MADV_POPULATE_READ of their pages takes 5 times as long
as a copy, process_vm_readv 9 times, preadv 18 times; for rows of 150 KB, 1.3 to 1.4 times.
"""

from __future__ import annotations

import atexit
import bisect
import ctypes
import errno
import mmap
import os
import platform
import signal
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.host.memory import (
    HUGE_PAGE,
    MAP_FAILED,
    MAP_NORESERVE,
    PAGE,
    Bytes,
    libc,
    map_memory,
    own_maps,
    unmap_memory,
)

SIGBUS_HANDLED = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")  # as laid out below

_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_TO_FIXED = 1 | 2  # MREMAP_MAYMOVE, MREMAP_FIXED
_SA_SIGINFO = 4


class _Action(ctypes.Structure):
    """The struct sigaction of glibc and musl."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _Info(ctypes.Structure):
    """First fields of siginfo_t."""

    _fields_ = (
        ("number", ctypes.c_int),
        ("errno", ctypes.c_int),
        ("code", ctypes.c_int),
        ("address", ctypes.c_uint64),
    )


libc.mremap.restype = ctypes.c_void_p
libc.mremap.argtypes = (ctypes.c_void_p, *[ctypes.c_size_t] * 2, ctypes.c_int, ctypes.c_void_p)


class MapGuard(ABC):
    """Guard over memory in which files are mapped, active until `release`.

    `lost` is the file that had an unreadable page since the guard was made, None for none.
    """

    page = b""  # that replaces an unreadable one; zeros where it is shorter

    def __init__(self) -> None:
        self.lost: Path | None = None
        if SIGBUS_HANDLED:
            _install()
            active_guards.add(self)

    def check(self) -> None:
        """Raise OSError if a page was unreadable since the guard was made: copied bytes may be invalid."""
        if self.lost is not None:
            raise OSError(errno.EIO, "a mapped page cannot be read (SIGBUS)", str(self.lost))

    def release(self) -> None:
        """End the guard. Call this before the memory is unmapped."""
        active_guards.discard(self)

    @abstractmethod
    def lost_range(self, address: int) -> tuple[Path, int, int] | None:
        """Return the file mapped at an address, and the start and end of the range to replace there.

        None if the guard does not cover the address.
        """

    def replace(self, path: Path, start: int, end: int) -> bool:
        """Replace the unreadable pages of a range by empty ones; return False if that fails."""
        self.lost, count = path, end - start  # first: another thread may read the new pages at once
        empty = libc.mmap(None, count, mmap.PROT_READ | mmap.PROT_WRITE, _PRIVATE, -1, 0)
        if empty == MAP_FAILED:
            return False
        ctypes.memmove(empty, self.page, len(self.page))
        return bool(libc.mremap(empty, count, count, _TO_FIXED, start) != MAP_FAILED)  # atomic


class FolderMapGuard(MapGuard):
    """Guard over all maps that this process has of the files below a folder, or of one file.

    Each lost page is replaced by `page`, repeated to fill it, or by zeros. Maps may be made after the guard:
    they are looked up when a page is lost. The guard is inactive in forked children, where no code
    would call `check`.
    """

    def __init__(self, folder: Path, page: bytes = b"") -> None:
        self._own, self._process = str(folder.resolve()), os.getpid()
        self.page = page * (PAGE // max(1, len(page)))
        super().__init__()

    def lost_range(self, address: int) -> tuple[Path, int, int] | None:
        """Return the file mapped at an address, and the start and end of its page there."""
        page = address // PAGE * PAGE
        with suppress(OSError):  # no descriptor is left: pass the bus error on
            for start, end, path in own_maps() if os.getpid() == self._process else ():
                if start <= address < end and (path + os.sep).startswith(self._own + os.sep):
                    return Path(path), page, page + PAGE
        return None


@contextmanager
def guarded(folder: Path, page: bytes = b"") -> Iterator[Callable[[], None]]:
    """Guard all maps of a folder's files, or of one file, for the duration of the block.

    Yields the guard's `check`, to call after each access: it raises OSError if a page was unreadable.
    """
    guard = FolderMapGuard(folder, page)
    try:
        yield guard.check
    finally:
        guard.release()


active_guards: set[MapGuard] = set()
_before = _Action()  # the previous handler
_passed_on = False


def _on_bus_error(number: int, info: Any, context: int) -> None:
    details = info.contents
    sent = details.code <= 0  # by kill(); else the fault of an instruction
    every = () if sent else [(guard, guard.lost_range(details.address)) for guard in tuple(active_guards)]
    lost = [(guard, pages) for guard, pages in every if pages is not None]
    if not (lost and all(guard.replace(*pages) for guard, pages in lost)):
        _pass_on(sent)


def _pass_on(sent: bool) -> None:
    """Pass a bus error on to the previous handler, or to the system's if that one returned it here."""
    global _passed_on
    _set(_Action() if _passed_on else _before)
    _passed_on = True
    if sent:
        signal.raise_signal(signal.SIGBUS)  # a faulting instruction raises it again by itself


def _install() -> None:
    global _before, _passed_on
    now = _Action()
    libc.sigaction(signal.SIGBUS, None, ctypes.byref(now))
    if now.handler != _OURS:
        _before, _passed_on = now, False
        _set(_Action(handler=_OURS, flags=_SA_SIGINFO))


def _set(action: _Action) -> None:
    libc.sigaction(signal.SIGBUS, ctypes.byref(action), None)


_handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(_Info), ctypes.c_void_p)(_on_bus_error)
_OURS = ctypes.cast(_handler, ctypes.c_void_p).value


@atexit.register
def _uninstall() -> None:
    """Restore the previous handler: Python code cannot run after the interpreter's end."""
    now = _Action()
    libc.sigaction(signal.SIGBUS, None, ctypes.byref(now))
    if now.handler == _OURS:
        _set(_before)


_RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
_FIXED = 0x10  # MAP_FIXED; the mmap module has no name for it
_SHARED_FIXED, _PRIVATE_FIXED = mmap.MAP_SHARED | _FIXED, mmap.MAP_PRIVATE | MAP_NORESERVE | _FIXED
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
    """Files mapped into one range of memory, guarded against bus errors; read-only unless `private`.

    Call `guard.check()` after each access: it raises OSError if a page was unreadable. `bytes` is the whole
    range, zeros between files; it is unmapped when the last view of it is gone. `starts` are those of the
    files in it, as from `side_by_side`.

    `sizes` are the expected ones, by default the files' current ones: if a file is shorter, its missing pages
    are unreadable. `private` maps are copy-on-write: what is written into one is in no file and no other map.
    """

    def __init__(
        self, paths: Sequence[Path], sizes: Sequence[int] | None = None, private: bool = False
    ) -> None:
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
                _map(path, begin + start, size, private)
        self.bytes: Bytes = np.frombuffer(memoryview(memory), np.uint8)
        self._begin = begin

    def advise_random(self) -> None:
        """Tell the kernel to read only the pages that are accessed, without readahead."""
        libc.madvise(ctypes.c_void_p(self._begin), ctypes.c_size_t(len(self.bytes)), mmap.MADV_RANDOM)


class _SideBySideGuard(MapGuard):
    """Guard over all files of a GuardedMap.

    A file that fails is replaced by zeros as a whole, so that a disk that fails slowly is accessed only once.
    """

    def __init__(self, paths: Sequence[Path], edges: list[int]) -> None:
        self._paths, self._edges = paths, edges
        super().__init__()

    def lost_range(self, address: int) -> tuple[Path, int, int] | None:
        """Return the file mapped at an address, and where it starts and ends."""
        number = bisect.bisect(self._edges, address) - 1
        if not 0 <= number < len(self._paths):
            return None
        return self._paths[number], self._edges[number], self._edges[number + 1]


def _map(path: Path, address: int, size: int, private: bool) -> None:
    flags = _PRIVATE_FIXED if private else _SHARED_FIXED
    with open(path, "rb", buffering=0) as file:  # which is closed wherever Ctrl-C comes
        map_memory(address, size, flags, file.fileno(), writable=private)


def _unmap(guard: Any, address: int, length: int) -> None:
    guard.release()
    unmap_memory(address, length)
