"""Reads past the page cache, many in flight: Linux's asynchronous IO on files opened O_DIRECT.

One system call submits and one collects a hundred reads, so that a single Python thread keeps a
disk as busy as fio does. Where the kernel has no such calls, threads with preadv take their place.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.host.memory import PAGE, touched_array

Bytes = npt.NDArray[np.uint8]
Index = npt.NDArray[np.int64]

MOST_IN_FLIGHT = 128
FEW_IN_FLIGHT = 64
THREADS = 16  # in place of asynchronous calls

# io_setup, io_destroy, io_getevents, io_submit
_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}.get(platform.machine())
# linux/aio_abi.h, on little-endian machines
_REQUEST = np.dtype(
    [
        ("data", "u8"),
        ("key", "u4"),
        ("rw_flags", "i4"),
        ("opcode", "u2"),  # 0 is pread
        ("priority", "i2"),
        ("descriptor", "u4"),
        ("address", "u8"),
        ("length", "u8"),
        ("offset", "i8"),
        ("reserved", "u8"),
        ("flags", "u4"),
        ("event_descriptor", "u4"),
    ]
)
_EVENT = np.dtype([("data", "u8"), ("request", "u8"), ("result", "i8"), ("result2", "i8")])
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


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


class Queue:
    """Reads in flight, for one thread at a time, into memory of its own or that of the caller.

    `piece_bytes` is the most that one read asks for, `memory_bytes` bounds what is in flight: 16 MiB
    keep a disk busy and stay in the processor's cache, from which they are copied on.
    """

    def __init__(self, piece_bytes: int, memory_bytes: int = 16 << 20) -> None:
        piece_bytes = -(-piece_bytes // PAGE) * PAGE
        self.depth = max(2, min(MOST_IN_FLIGHT, memory_bytes // piece_bytes))
        self._piece_bytes, self._slots = piece_bytes, list[Bytes]()
        self._flight: _KernelFlight | _ThreadFlight
        try:
            self._flight = _KernelFlight(self.depth)
        except OSError:  # none in this kernel, or none left, or a container forbids them
            self._flight = _ThreadFlight(self.depth)

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
        # many small reads are submitted together; a large one as soon as there is room, so that the
        # disk is not idle while those that arrived with it are still being used
        together = self.depth // 4 if self.depth > FEW_IN_FLIGHT else 1
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
        """Give the kernel's queue back; a second call does nothing, a later read is a ValueError."""
        self._flight.close()
        self.depth = 0


class _KernelFlight:
    """Reads that the kernel has."""

    def __init__(self, depth: int) -> None:
        if _NUMBERS is None:
            raise OSError(errno.ENOSYS, "no asynchronous reads on this processor")
        self._context = ctypes.c_ulong(0)
        self._call(0, ctypes.c_uint(depth), ctypes.byref(self._context))
        self._process = os.getpid()
        self._requests = np.zeros(depth, _REQUEST)
        self._requests["data"] = np.arange(depth)
        self._places = (self._requests.ctypes.data + _REQUEST.itemsize * np.arange(depth)).astype("u8")
        self._events = np.zeros(depth, _EVENT)

    def submit(self, descriptors: Index, slots: list[int], places: list[Bytes], offsets: Index) -> int:
        """How many reads, the first ones, are in flight now; OSError where not even one can be."""
        if not slots:
            return 0
        requests = self._requests
        requests["descriptor"][slots] = descriptors[: len(slots)]
        requests["offset"][slots] = offsets[: len(slots)]
        requests["length"][slots] = [len(place) for place in places]
        requests["address"][slots] = [address_of(place) for place in places]
        pointers = self._places[slots]
        return self._call(3, self._context, ctypes.c_long(len(slots)), ctypes.c_void_p(pointers.ctypes.data))

    def collect(self, least: int) -> list[tuple[int, int]]:
        """Slot and result of at least so many reads; a negative result is an error number."""
        events = self._events
        most, place = ctypes.c_long(len(events)), ctypes.c_void_p(events.ctypes.data)
        count = self._call(2, self._context, ctypes.c_long(least), most, place, None)
        return list(zip(events["data"][:count].tolist(), events["result"][:count].tolist(), strict=True))

    def close(self) -> None:
        if self._context.value and os.getpid() == self._process:  # a fork does not inherit it
            self._call(1, self._context)
        self._context.value = 0

    @staticmethod
    def _call(name: int, *arguments: Any) -> int:
        assert _NUMBERS is not None
        while True:
            result = int(_libc.syscall(ctypes.c_long(_NUMBERS[name]), *arguments))
            if result >= 0:
                return result
            code = ctypes.get_errno()
            # when others hold all that fs.aio-max-nr allows, no queue can be made, perhaps for ever
            if code != errno.EINTR and (code != errno.EAGAIN or name == 0):
                raise OSError(code, os.strerror(code))


class _ThreadFlight:
    """Reads that threads have."""

    def __init__(self, depth: int) -> None:
        self._pool = ThreadPoolExecutor(min(THREADS, depth), "iobench-direct")
        self._futures: dict[Future[int], int] = {}

    def submit(self, descriptors: Index, slots: list[int], places: list[Bytes], offsets: Index) -> int:
        of_each = (array[: len(slots)].tolist() for array in (descriptors, offsets))
        for slot, place, descriptor, offset in zip(slots, places, *of_each, strict=True):
            self._futures[self._pool.submit(os.preadv, descriptor, [place.data], offset)] = slot
        return len(slots)

    def collect(self, least: int) -> list[tuple[int, int]]:
        done, _ = wait(self._futures, return_when=FIRST_COMPLETED)
        return [(self._futures.pop(future), _result(future)) for future in done]

    def close(self) -> None:
        self._pool.shutdown()


def address_of(array: Bytes) -> int:
    """Where an array's first byte is in memory."""
    return int(array.__array_interface__["data"][0])


def _result(future: Future[int]) -> int:
    error = future.exception()
    return -(error.errno or errno.EIO) if isinstance(error, OSError) else future.result()
