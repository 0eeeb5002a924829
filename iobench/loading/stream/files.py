"""Open files of which there may be very many: a bounded number of descriptors, opened as needed."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from iobench.base.errors import (
    corrupt,
)

MAX_OPEN = 256
READ_BYTES = 8 << 20  # the most that is read in one call: the kernel reads this far ahead of itself

Bytes = npt.NDArray[np.uint8]


@dataclass
class _Opened:
    descriptor: int
    users: int = 0


class DescriptorPool:
    """Descriptors of files by their numbers; those used last stay open, for several threads."""

    def __init__(self, paths: Sequence[Path], opening: Callable[[Path], int]) -> None:
        self.paths, self._opening = paths, opening
        self._opened: OrderedDict[int, _Opened] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def descriptor(self, number: int) -> Iterator[int]:
        """The descriptor of a file, which stays open for as long as the block runs.

        ValueError after `close`; OSError where it cannot be opened.
        """
        with self._lock:
            found = self._taken(number)
        try:
            yield found.descriptor
        finally:
            with self._lock:
                found.users -= 1
                self._trim(0 if self._closed else MAX_OPEN)

    def close(self) -> None:
        """Close what is not being used at this moment; that is closed as soon as it is not."""
        with self._lock:
            self._closed = True
            self._trim(0)

    def _taken(self, number: int) -> _Opened:
        if self._closed:
            raise ValueError("this reader is closed")
        if number not in self._opened:
            self._opened[number] = _Opened(self._opening(self.paths[number]))
        found = self._opened[number]
        found.users += 1
        self._opened.move_to_end(number)
        return found

    def _trim(self, most: int) -> None:
        for number in [number for number, opened in self._opened.items() if not opened.users]:
            if len(self._opened) <= most:
                break
            os.close(self._opened.pop(number).descriptor)


def open_plain(path: Path) -> int:
    """A descriptor for plain reads."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def read_into(descriptor: int, path: Path, start: int, into: Bytes) -> None:
    """Fill memory from this offset of a file on.

    CorruptArtifact where the file ends before, OSError with its name where the disk fails.
    """
    done = 0
    while done < len(into):
        with naming(path):
            got = os.preadv(descriptor, [into[done : done + READ_BYTES].data], start + done)
        if got == 0:
            raise corrupt(path, f"at least {start + len(into)} bytes", f"{start + done} bytes")
        done += got


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have the disk's errors name a file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
