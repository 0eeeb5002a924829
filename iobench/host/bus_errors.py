"""Mapped files whose unreadable pages are an error for whoever reads them, not the end of the process.

Where a disk fails under a mapped file, or the file was cut, the kernel answers a look at the page
with SIGBUS. Here that signal puts empty pages in the place of those that are lost and makes a note,
which `MapGuard.check` raises after the look. (libwayland guards shared memory in the same way.) The
signal comes to the very thread that looks, at that instruction: inside NumPy's copying, where Python
code may run. A bus error anywhere else is left to whoever was there before.

Nothing is paid while all is well. Whatever asks the kernel before or in place of each look costs more
than the look: for rows of 512 bytes, MADV_POPULATE_READ of their pages 5 times a copy, process_vm_readv
9 times, preadv 18 times; for rows of 150 KB, 1.3 to 1.4 times.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import mmap
import os
import platform
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from iobench.host.memory import PAGE

SIGBUS_HANDLED = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")  # as laid out below

# A leaf page without keys, as LMDB, which maps its files itself, lays it out: of zeros it would abort.
# To whoever maps arrays it is as good as any other.
NO_KEYS = struct.pack("<QHHHH4080x", 0, 0, 0x02, 16, 4096) * (PAGE // 4096)

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
    """The beginning of siginfo_t."""

    _fields_ = (
        ("number", ctypes.c_int),
        ("errno", ctypes.c_int),
        ("code", ctypes.c_int),
        ("address", ctypes.c_uint64),
    )


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_void_p,
)
_FAILED = ctypes.c_void_p(-1).value


class MapGuard:
    """A stretch of memory into which a file is mapped, watched until `release`.

    What cannot be read is replaced by empty pages: by one of `page`, if that is given, else the
    whole stretch by zeros, so that a disk that fails slowly is asked once.
    """

    def __init__(self, path: Path, address: int, length: int, page: bytes = b"") -> None:
        self._path, self._address, self._end, self._page = path, address, address + length, page
        self._lost: Path | None = None
        if SIGBUS_HANDLED:
            _install()
            _guards.add(self)

    def check(self) -> None:
        """OSError where a page could not be read since this was made: what was copied may be no data."""
        if self._lost is not None:
            raise OSError(errno.EIO, "a page that is mapped (SIGBUS) cannot be read", str(self._lost))

    def release(self) -> None:
        """Watch no longer; to be called before the memory is unmapped."""
        _guards.discard(self)

    def holds(self, address: int) -> bool:
        """Whether a byte of memory is in this stretch."""
        return self._address <= address < self._end

    def stretch(self, address: int) -> tuple[Path, int, int]:
        """The file mapped at an address, and from where to where it gives way if it fails there."""
        if not self._page:
            return self._path, self._address, self._end
        start = address // PAGE * PAGE
        return self._path, start, start + PAGE

    def replace(self, address: int) -> bool:
        """Put empty pages in the place of what cannot be read there; whether that worked."""
        self._lost, start, end = self.stretch(address)  # first: another thread may read the pages at once
        count = end - start
        empty = _libc.mmap(None, count, mmap.PROT_READ | mmap.PROT_WRITE, _PRIVATE, -1, 0)
        if empty == _FAILED:
            return False
        ctypes.memmove(empty, self._page, len(self._page))
        return bool(_libc.mremap(empty, count, count, _TO_FIXED, start) != _FAILED)  # at one blow


def map_memory(address: int | None, count: int, flags: int, descriptor: int = -1) -> int:
    """Map memory, or a file from its beginning on, to be read; where that is. OSError where it cannot be."""
    found = _libc.mmap(address, count, mmap.PROT_READ, flags, descriptor, 0)
    if found == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"mapping {count} bytes: {os.strerror(code)}")
    return int(found)


def unmap_memory(address: int, count: int) -> None:
    """Take back what was mapped there."""
    _libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(count))


class FolderMapGuard(MapGuard):
    """Watches whatever this process has mapped of the files below a folder, or of a file, by the moment.

    Each page that is lost gives way to `page`, in which a library finds nothing. Maps may be made after
    it: they are looked for when a page is lost. A forked child has none: it cannot tell who checks.
    """

    def __init__(self, folder: Path, page: bytes = NO_KEYS) -> None:
        self._own, self._process = str(folder.resolve()), os.getpid()
        super().__init__(folder, 0, 0, page)

    def holds(self, address: int) -> bool:
        """Whether a byte of memory is in such a map."""
        return os.getpid() == self._process and self._file_at(address) is not None

    def stretch(self, address: int) -> tuple[Path, int, int]:
        """The file mapped at an address, and its page there."""
        start = address // PAGE * PAGE
        return self._file_at(address) or self._path, start, start + PAGE

    def _file_at(self, address: int) -> Path | None:
        try:
            lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
        except OSError:  # no descriptor is left: whoever was there before gets the bus error
            return None
        for line in lines:
            if self._own in line:
                span, *_, path = line.split(maxsplit=5)
                start, end = (int(number, 16) for number in span.split("-"))
                if start <= address < end and (path + os.sep).startswith(self._own + os.sep):
                    return Path(path)
        return None


@contextmanager
def guarded(folder: Path) -> Iterator[Callable[[], None]]:
    """A guard over what is mapped of a folder's files, or of a file, for as long as the block runs.

    Yields what to call after each look: OSError where a page could not be read.
    """
    guard = FolderMapGuard(folder)
    try:
        yield guard.check
    finally:
        guard.release()


_guards: set[MapGuard] = set()
_before = _Action()  # what was done about bus errors before
_passed_on = False


def _on_bus_error(number: int, info: Any, context: int) -> None:
    found = info.contents
    sent = found.code <= 0  # by somebody; else an instruction's own fault
    lost = [] if sent else [guard for guard in tuple(_guards) if guard.holds(found.address)]
    if not (lost and all(guard.replace(found.address) for guard in lost)):
        _pass_on(sent)


def _pass_on(sent: bool) -> None:
    """Let whoever was there before have this bus error; where that one gave it back, the system."""
    global _passed_on
    _set(_Action() if _passed_on else _before)
    _passed_on = True
    if sent:
        signal.raise_signal(signal.SIGBUS)  # a fault comes again by itself


def _install() -> None:
    global _before, _passed_on
    now = _Action()
    _libc.sigaction(signal.SIGBUS, None, ctypes.byref(now))
    if now.handler != _OURS:
        _before, _passed_on = now, False
        _set(_Action(handler=_OURS, flags=_SA_SIGINFO))


def _set(action: _Action) -> None:
    _libc.sigaction(signal.SIGBUS, ctypes.byref(action), None)


_handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.POINTER(_Info), ctypes.c_void_p)(_on_bus_error)
_OURS = ctypes.cast(_handler, ctypes.c_void_p).value


@atexit.register
def _uninstall() -> None:
    """Python code cannot run in a handler once the interpreter has gone."""
    now = _Action()
    _libc.sigaction(signal.SIGBUS, None, ctypes.byref(now))
    if now.handler == _OURS:
        _set(_before)
