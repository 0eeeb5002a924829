"""Memory for batches, used again once whoever holds a batch has let go of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import ref

import numpy as np
import numpy.typing as npt

from iobench.host.memory import PAGE

Bytes = npt.NDArray[np.uint8]
Allocate = Callable[[int, int], list[Bytes]]  # bytes of a slot, slots; each begins with a page


class Ring:
    """Equal slots of memory. There is always another one; about `keep` of them wait for use.

    They are allocated `at_once`, or each when it is first needed, by the thread that needs it.
    """

    def __init__(self, slot_bytes: int, keep: int, allocate: Allocate, at_once: bool = True) -> None:
        self._slot_bytes, self._keep, self._allocate = slot_bytes + PAGE, keep, allocate
        self._fresh = allocate(self._slot_bytes, keep) if at_once else []
        self._out: set[_Held] = set()
        self._back: deque[_Held] = deque()  # in whichever thread the last reference is dropped

    def take(self, count: int, page_offset: int = 0) -> Bytes:
        """`count` bytes of a slot, from byte `page_offset` of a page on; free when no view of them is left."""
        lease = _Lease(self._memory())
        # the callback is no Python code: a signal that came while it ran would be lost
        self._out.add(_Held(lease, self._back.append))
        return np.asarray(lease)[page_offset : page_offset + count]

    def close(self) -> None:
        """Let go of the slots; those in use go when they are let go of."""
        self._fresh.clear()
        self._out.clear()
        self._back.clear()

    def _memory(self) -> Bytes:
        while len(self._back) > self._keep:
            self._out.discard(self._back.pop())
        with suppress(IndexError):
            held = self._back.pop()
            self._out.discard(held)
            return held.memory
        with suppress(IndexError):
            return self._fresh.pop()
        return self._allocate(self._slot_bytes, 1)[0]


class _Lease:
    """What the arrays over a slot refer to: it goes when the last of them does."""

    __slots__ = ("__array_interface__", "__weakref__", "memory")

    def __init__(self, memory: Bytes) -> None:
        self.memory = memory
        self.__array_interface__: dict[str, Any] = memory.__array_interface__


class _Held(ref["_Lease"]):
    """A slot that somebody holds; given back, by itself, when they let go."""

    __slots__ = ("memory",)

    def __init__(self, lease: _Lease, give_back: Callable[[Any], None]) -> None:
        self.memory = lease.memory

    def __new__(cls, lease: _Lease, give_back: Callable[[Any], None]) -> _Held:
        """A weak reference to the lease."""
        return super().__new__(cls, lease, give_back)

    __hash__ = object.__hash__  # that of a reference is gone with what it refers to
    __eq__ = object.__eq__
