"""Files of an address space: descriptors opened on demand, and maps side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from iobench.base.errors import corrupt
from iobench.base.open_pool import OpenPool
from iobench.formats import Array, raw_bytes
from iobench.host.machine_info import is_remote, read_ahead_kib
from iobench.host.maps import SIGBUS_HANDLED, GuardedMap
from iobench.host.memory import Bytes
from iobench.stream.addresses import AddressSpace

MAX_OPEN = 256
READ_BYTES = 8 << 20  # maximum size of one read call
REQUEST_BYTES = 128 << 10  # or the disk's readahead if that is larger: Linux reads no more per request


def descriptors(paths: Sequence[Path], opening: Callable[[Path], int]) -> OpenPool[int]:
    """Return a pool of descriptors by file number; OSError if a file cannot be opened."""
    return OpenPool(lambda number: opening(paths[number]), os.close, MAX_OPEN)


def open_plain(path: Path) -> int:
    """Open a file for reads through the page cache."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def request_bytes(path: Path) -> int:
    """Return the most bytes that the kernel reads of a file for one request of `request`."""
    return max(REQUEST_BYTES, (read_ahead_kib(path) or 0) << 10)


def request(descriptor: int, start: int, stop: int, piece_bytes: int) -> None:
    """Request bytes of a file from the kernel, all at once and without waiting.

    On a remote file system reads wait for each other without it. On a local disk the kernel's own readahead
    is faster: it fills the page cache with larger pages.
    """
    for begin in range(start, stop, piece_bytes):
        os.posix_fadvise(descriptor, begin, min(piece_bytes, stop - begin), os.POSIX_FADV_WILLNEED)


def read_into(descriptor: int, path: Path, start: int, into: Bytes) -> None:
    """Fill memory with the bytes of a file from an offset on.

    Raises CorruptArtifact if the file ends too early, OSError with the file's name if the disk fails.
    """
    done = 0
    while done < len(into):
        with naming(path):
            got = os.preadv(descriptor, [into[done : done + READ_BYTES].data], start + done)
        if got == 0:
            raise corrupt(
                path, f"at least {start + len(into)} bytes", f"{start + done} bytes", kind="truncated"
            )
        done += got


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the name of a file to errors of the disk."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


class MappedFiles:
    """Bytes at positions of an address space: from a map if they are in memory, else by plain reads.

    `memory` is the map of all files; call `check` after each access. Bytes may not be in memory if `cold`. If
    `reads_slices`, slices are read in long pieces, for which the kernel reads ahead.
    """

    def __init__(self, addresses: AddressSpace, cold: bool, reads_slices: bool) -> None:
        self._addresses, self._cold = addresses, cold
        mapped = GuardedMap(addresses.files, addresses.sizes)
        self._guard = mapped.guard  # kept by an error's traceback, which must not keep the map
        self.memory = mapped.bytes
        if cold:  # a readahead thread reads ahead: page faults must not start a readahead of their own
            mapped.advise_random()
        self._files = descriptors(addresses.files, partial(_opened, cold and not reads_slices))
        first = Path(addresses.files[0])
        self._request_bytes = request_bytes(first) if cold and reads_slices and is_remote(first) else None

    def check(self) -> None:
        """Raise OSError if a page of the map was unreadable."""
        self._guard.check()

    def copy(self, position: int, target: Array) -> None:
        """Fill an array with the bytes from a position on."""
        if self._cold or not SIGBUS_HANDLED:
            self.read(position, target)
            return
        into = np.frombuffer(raw_bytes(target), np.uint8)
        into[:] = self.memory[position : position + len(into)]
        try:
            self.check()
        except OSError:
            self.read(position, target)  # names a file that ends too early
            raise

    def read(self, position: int, target: Array) -> None:
        """Fill an array with the bytes from a position on, by plain reads."""
        number, offset = self._addresses.within(position)
        into: Bytes = np.frombuffer(raw_bytes(target), np.uint8)
        with self._files.use(number) as file:
            if self._request_bytes:
                request(file, offset, offset + len(into), self._request_bytes)
            read_into(file, self._addresses.files[number], offset, into)

    def close(self) -> None:
        """Close the files and release the map."""
        self._files.close()
        self.memory = self.memory[:0].copy()


def _opened(random: bool, path: Path) -> int:
    descriptor = open_plain(path)
    if random:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    return descriptor
