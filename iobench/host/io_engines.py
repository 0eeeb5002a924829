"""IO engines behind `ReadQueue`: Linux AIO, or a pool of threads where the kernel has none."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.host.memory import Bytes, address_of

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
