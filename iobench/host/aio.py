"""Reads past the page cache, many in flight: Linux's asynchronous IO on files opened O_DIRECT.

One system call submits and one collects a hundred reads, so that a single Python thread keeps a
disk as busy as fio does. Where the kernel has no such calls, threads with preadv take their place.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from iobench.host.io_engines import MAX_IODEPTH, LibaioEngine, ThreadPoolEngine
from iobench.host.memory import PAGE, touched_array

Bytes = npt.NDArray[np.uint8]
Index = npt.NDArray[np.int64]

SHALLOW_IODEPTH = 64


class DirectUnavailable(Exception):
    """This file system cannot be read past the page cache."""


class ReadFailed(OSError):
    """One of several reads failed: that of this number."""

    def __init__(self, code: int, number: int) -> None:
        super().__init__(code, os.strerror(code))
        self.number = number


def open_direct(path: Path) -> int:
    """A descriptor for reads past the page cache; DirectUnavailable where there are none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise DirectUnavailable(
            f"{path}: this file system cannot be read past the page cache (O_DIRECT)"
        ) from error
    try:
        os.preadv(descriptor, [touched_array(PAGE).data], 0)
    except OSError as error:
        os.close(descriptor)
        raise DirectUnavailable(
            f"{path}: cannot be read in pieces of {PAGE} bytes: {error.strerror}"
        ) from error
    return descriptor


class ReadQueue:
    """Reads in flight, for one thread at a time, into memory of its own or that of the caller.

    `piece_bytes` is the most that one read asks for, `memory_bytes` bounds what is in flight: 16 MiB
    keep a disk busy and stay in the processor's cache, from which they are copied on.
    """

    def __init__(self, piece_bytes: int, memory_bytes: int = 16 << 20) -> None:
        piece_bytes = -(-piece_bytes // PAGE) * PAGE
        self.depth = max(2, min(MAX_IODEPTH, memory_bytes // piece_bytes))
        self._piece_bytes, self._slots = piece_bytes, list[Bytes]()
        self._flight: LibaioEngine | ThreadPoolEngine
        try:
            self._flight = LibaioEngine.idle()
        except OSError:  # none in this kernel, or none left, or a container forbids them
            self._flight = ThreadPoolEngine(self.depth)

    def read(
        self,
        descriptors: int | Index,
        offsets: Index,
        lengths: Index,
        into: Sequence[Bytes] | None = None,
    ) -> Generator[tuple[int, Bytes], None, None]:
        """The number of each read with the bytes it got, as they come.

        One descriptor for all reads, or one for each.

        Without memory to read `into`, one page-aligned array for each read, the bytes are there
        until the next is asked for. They are fewer than asked for where the file ends. Offsets and
        lengths are multiples of the page. ReadFailed where the disk fails.
        """
        if not self.depth:
            raise ValueError("this queue is closed")
        if into is None and not self._slots:
            self._slots = np.split(touched_array(self.depth * self._piece_bytes), self.depth)
        free, in_flight = list(range(self.depth)), dict[int, tuple[int, Bytes]]()
        arrived: deque[tuple[int, int, Bytes, int]] = deque()
        submitted, count = 0, len(offsets)
        descriptors = np.broadcast_to(descriptors, count)
        # many small reads are submitted together; a few large ones as soon as there is room, so that the
        # disk is not idle while those that arrived with them are still being used
        together = max(1, self.depth // (4 if self.depth > SHALLOW_IODEPTH else 8))
        try:
            while submitted < count or in_flight or arrived:
                if submitted < count and (len(free) >= together or not in_flight):
                    numbers = range(submitted, min(submitted + len(free), count))
                    places = [
                        (self._slots[free[-1 - i]] if into is None else into[n])[: lengths[n]]
                        for i, n in enumerate(numbers)
                    ]
                    slots = free[: -1 - len(numbers) : -1]
                    taken = self._flight.submit(descriptors[submitted:], slots, places, offsets[submitted:])
                    for number, place in zip(numbers[:taken], places, strict=False):
                        in_flight[free.pop()] = (number, place)
                    submitted += taken
                if not arrived:
                    arrived.extend(self._collected(in_flight, together))
                slot, number, place, result = arrived.popleft()
                if result < 0:
                    raise ReadFailed(-result, number)
                yield number, place[:result]
                free.append(slot)
        finally:
            while in_flight:  # their memory must not be given away before
                self._collected(in_flight, 1)

    def _collected(
        self, in_flight: dict[int, tuple[int, Bytes]], least: int
    ) -> list[tuple[int, int, Bytes, int]]:
        """Slot, number, memory and result of reads that have come, `least` of them if there are so many."""
        done = self._flight.collect(min(least, len(in_flight)))
        return [(slot, *in_flight.pop(slot), result) for slot, result in done]

    def close(self) -> None:
        """Let go of the kernel's queue; a second call does nothing, a later read is a ValueError."""
        if self.depth:
            self.depth = 0
            self._flight.close()
