"""Asynchronous reads past the page cache: `ReadQueue` over Linux AIO on files opened with O_DIRECT.

One system call submits a hundred reads and one collects them, so a single Python thread keeps a
disk as busy as fio does. On kernels without these calls, a pool of threads uses preadv instead.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.host.memory import PAGE, Bytes, address_of, touched_array, whole_pages

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

    Raises DirectUnavailable if the file system does not support O_DIRECT, or not for reads of one page, and
    OSError if the file cannot be opened for another reason.
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
    """A queue of reads in flight, each of at most `piece_bytes`, used by one thread at a time.

    Reads go into the queue's own memory or into the caller's. The limit of the bytes in flight, 16 MiB by
    default, keeps a disk busy and still fits into the processor's cache, from which the data is copied on.
    """

    def __init__(self, piece_bytes: int, memory_bytes: int = 16 << 20) -> None:
        piece_bytes = whole_pages(piece_bytes)
        self.depth = max(2, min(MAX_IODEPTH, memory_bytes // piece_bytes))
        self._piece_bytes, self._slots = piece_bytes, list[Bytes]()
        self.engine: LibaioEngine | ThreadPoolEngine
        try:
            self.engine = LibaioEngine.acquire()
        except OSError:  # the kernel has no AIO, its limit is used up, or a container forbids it
            self.engine = ThreadPoolEngine(self.depth)

    def read(
        self, descriptors: int | Index, offsets: Index, lengths: Index, into: Sequence[Bytes] | None = None
    ) -> Generator[tuple[int, Bytes], None, None]:
        """Yield the index of each read and the bytes it returned, in order of completion.

        There are fewer than requested where the file ends. `descriptors` are one for all reads, or one per
        read; offsets and lengths are multiples of the page size. `into` is page-aligned memory, an array per
        read; without it the bytes that are yielded are valid until the next item is requested.

        Raises ReadFailed if the disk reports an error, ValueError if the queue is closed.
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


Index = npt.NDArray[np.int64]

MAX_IODEPTH = 128
MAX_IDLE = 8  # contexts kept for reuse
THREADS = 16  # of a ThreadPoolEngine

# io_setup, io_destroy, io_getevents, io_submit
AIO_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}.get(platform.machine())
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
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


class LibaioEngine:
    """Linux AIO context with room for MAX_IODEPTH reads; OSError where the kernel refuses one."""

    def __init__(self) -> None:
        self._context = ctypes.c_ulong(0)
        _call(0, ctypes.c_uint(MAX_IODEPTH), ctypes.byref(self._context))
        self._process, self._in_flight = os.getpid(), 0
        slots = np.arange(MAX_IODEPTH)
        self._requests = np.zeros(MAX_IODEPTH, _REQUEST)
        self._requests["data"] = slots
        self._pointers = (self._requests.ctypes.data + _REQUEST.itemsize * slots).astype("u8")
        self._events = np.zeros(MAX_IODEPTH, _EVENT)

    @classmethod
    def acquire(cls) -> LibaioEngine:
        """Return an idle context of this process, or a new one."""
        if AIO_CALLS is None:
            raise OSError(errno.ENOSYS, "no asynchronous reads on this processor")
        with suppress(IndexError):
            while True:
                engine = idle_contexts.pop()
                if engine._process == os.getpid():  # a fork does not inherit the context
                    return engine
        return cls()

    def submit(self, descriptors: Index, slots: list[int], buffers: list[Bytes], offsets: Index) -> int:
        """Submit reads; return how many of them, from the first on, were accepted.

        Raises OSError if not even one was.
        """
        if not slots:
            return 0
        requests = self._requests
        requests["descriptor"][slots] = descriptors[: len(slots)]
        requests["offset"][slots] = offsets[: len(slots)]
        requests["length"][slots] = [len(buffer) for buffer in buffers]
        requests["address"][slots] = [address_of(buffer) for buffer in buffers]
        pointers = self._pointers[slots]
        taken = _call(3, self._context, ctypes.c_long(len(slots)), ctypes.c_void_p(pointers.ctypes.data))
        self._in_flight += taken
        return taken

    def collect(self, least: int) -> list[tuple[int, int]]:
        """Wait for at least `least` reads; return slot and result of each. A negative result is an errno."""
        events = self._events
        most, buffer = ctypes.c_long(len(events)), ctypes.c_void_p(events.ctypes.data)
        count = _call(2, self._context, ctypes.c_long(least), most, buffer, None)
        self._in_flight -= count
        return list(zip(events["data"][:count].tolist(), events["result"][:count].tolist(), strict=True))

    def close(self) -> None:
        """Keep the context for reuse, because the kernel takes 30 ms to destroy one."""
        if self._in_flight or len(idle_contexts) >= MAX_IDLE:
            self.destroy()
        else:
            idle_contexts.append(self)

    def destroy(self) -> None:
        """Return the context to the kernel, in the process that it belongs to."""
        if self._process == os.getpid():
            _call(1, self._context)
        self._context.value = 0


idle_contexts: deque[LibaioEngine] = deque()


def _call(name: int, *arguments: Any) -> int:
    assert AIO_CALLS is not None
    while True:
        result = int(libc.syscall(ctypes.c_long(AIO_CALLS[name]), *arguments))
        if result >= 0:
            return result
        code = ctypes.get_errno()
        # io_setup (0) returns EAGAIN while other processes hold all of fs.aio-max-nr, perhaps for ever
        if code != errno.EINTR and (code != errno.EAGAIN or name == 0):
            raise OSError(code, os.strerror(code))


class ThreadPoolEngine:
    """Reads by a pool of threads."""

    def __init__(self, depth: int) -> None:
        self._pool = ThreadPoolExecutor(min(THREADS, depth), "iobench-direct")
        self._futures: dict[Future[int], int] = {}

    def submit(self, descriptors: Index, slots: list[int], buffers: list[Bytes], offsets: Index) -> int:
        """Submit all reads; return how many."""
        of_each = (array[: len(slots)].tolist() for array in (descriptors, offsets))
        for slot, buffer, descriptor, offset in zip(slots, buffers, *of_each, strict=True):
            self._futures[self._pool.submit(os.preadv, descriptor, [buffer.data], offset)] = slot
        return len(slots)

    def collect(self, least: int) -> list[tuple[int, int]]:
        """Wait for at least one read; return slot and result of each. A negative result is an errno."""
        done, _ = wait(self._futures, return_when=FIRST_COMPLETED)
        return [(self._futures.pop(future), _result(future)) for future in done]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


def _result(future: Future[int]) -> int:
    error = future.exception()
    return -(error.errno or errno.EIO) if isinstance(error, OSError) else future.result()
