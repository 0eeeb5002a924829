"""Asynchronous reads past the page cache: Linux AIO on files opened with O_DIRECT.

One system call submits a hundred reads and one collects them, so a single Python thread keeps a
disk as busy as fio does. On kernels without these calls, a pool of threads uses preadv instead.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np

from iobench.host.io_engines import MAX_IODEPTH, Index, LibaioEngine, ThreadPoolEngine
from iobench.host.memory import PAGE, Bytes, touched_array

SHALLOW_IODEPTH = 64


class DirectUnavailable(Exception):
    """The file system does not support reads past the page cache."""


class ReadFailed(OSError):
    """One of several reads failed; `number` is its index."""

    def __init__(self, code: int, number: int) -> None:
        super().__init__(code, os.strerror(code))
        self.number = number


def open_direct(path: Path) -> int:
    """Open a file for reads past the page cache.

    Raises
    ------
    DirectUnavailable
        If the file system does not support O_DIRECT, or not for reads of one page.
    OSError
        If the file cannot be opened for another reason.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise DirectUnavailable(
            f"{path}: this file system does not support reads past the page cache (O_DIRECT)"
        ) from error
    try:
        os.preadv(descriptor, [touched_array(PAGE).data], 0)
    except OSError as error:
        os.close(descriptor)
        raise DirectUnavailable(
            f"{path}: reads of {PAGE} bytes past the page cache fail: {error.strerror}"
        ) from error
    return descriptor


class ReadQueue:
    """A queue of reads in flight, used by one thread at a time.

    Reads go into the queue's own memory or into the caller's.

    Parameters
    ----------
    piece_bytes : int
        Largest size of one read.
    memory_bytes : int
        Limit of the bytes in flight. The default of 16 MiB keeps a disk busy and still fits into the
        processor's cache, from which the data is copied on.
    """

    def __init__(self, piece_bytes: int, memory_bytes: int = 16 << 20) -> None:
        piece_bytes = -(-piece_bytes // PAGE) * PAGE
        self.depth = max(2, min(MAX_IODEPTH, memory_bytes // piece_bytes))
        self._piece_bytes, self._slots = piece_bytes, list[Bytes]()
        self.engine: LibaioEngine | ThreadPoolEngine
        try:
            self.engine = LibaioEngine.acquire()
        except OSError:  # the kernel has no AIO, its limit is used up, or a container forbids it
            self.engine = ThreadPoolEngine(self.depth)

    def read(
        self,
        descriptors: int | Index,
        offsets: Index,
        lengths: Index,
        into: Sequence[Bytes] | None = None,
    ) -> Generator[tuple[int, Bytes], None, None]:
        """Yield the index of each read and the bytes it returned, in order of completion.

        Parameters
        ----------
        descriptors : int or array of int64
            One file descriptor for all reads, or one per read.
        offsets, lengths : array of int64
            Position and size of each read in bytes, multiples of the page size.
        into : sequence of uint8 arrays, optional
            Page-aligned memory, one array per read. Without it the bytes that are yielded are valid
            until the next item is requested.

        Yields
        ------
        index, data : int, uint8 array
            `data` is shorter than requested where the file ends.

        Raises
        ------
        ReadFailed
            If the disk reports an error.
        ValueError
            If the queue is closed.
        """
        if not self.depth:
            raise ValueError("this queue is closed")
        if into is None and not self._slots:
            self._slots = np.split(touched_array(self.depth * self._piece_bytes), self.depth)
        free, in_flight = list(range(self.depth)), dict[int, tuple[int, Bytes]]()
        arrived: deque[tuple[int, int, Bytes, int]] = deque()
        submitted, count = 0, len(offsets)
        descriptors = np.broadcast_to(descriptors, count)
        # Many small reads are submitted together. A few large ones are submitted as soon as a slot is free:
        # otherwise the disk would be idle while the consumer uses those that arrived.
        together = max(1, self.depth // (4 if self.depth > SHALLOW_IODEPTH else 8))
        try:
            while submitted < count or in_flight or arrived:
                if submitted < count and (len(free) >= together or not in_flight):
                    numbers = range(submitted, min(submitted + len(free), count))
                    buffers = [
                        (self._slots[free[-1 - i]] if into is None else into[n])[: lengths[n]]
                        for i, n in enumerate(numbers)
                    ]
                    slots = free[: -1 - len(numbers) : -1]
                    taken = self.engine.submit(descriptors[submitted:], slots, buffers, offsets[submitted:])
                    for number, buffer in zip(numbers[:taken], buffers, strict=False):
                        in_flight[free.pop()] = (number, buffer)
                    submitted += taken
                if not arrived:
                    arrived.extend(self._collected(in_flight, together))
                slot, number, buffer, result = arrived.popleft()
                if result < 0:
                    raise ReadFailed(-result, number)
                yield number, buffer[:result]
                free.append(slot)
        finally:
            while in_flight:  # the kernel still writes to their memory
                self._collected(in_flight, 1)

    def _collected(
        self, in_flight: dict[int, tuple[int, Bytes]], least: int
    ) -> list[tuple[int, int, Bytes, int]]:
        """Wait for `least` reads, or all in flight; return slot, number, memory and result of each."""
        done = self.engine.collect(min(least, len(in_flight)))
        return [(slot, *in_flight.pop(slot), result) for slot, result in done]

    def close(self) -> None:
        """Release the engine. Later reads raise ValueError; a second call does nothing."""
        if self.depth:
            self.depth = 0
            self.engine.close()
