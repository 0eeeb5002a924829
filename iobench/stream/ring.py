"""Reusable memory for batches: a slot is free again when the last reference to its batch is gone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import ref

import numpy as np

from iobench.host.memory import PAGE, Bytes

GROWTH = 1.1  # so that few groups need larger slots than all before
Allocate = Callable[[int, int], list[Bytes]]  # (bytes per slot, slots) -> page-aligned slots


class Ring:
    """Slots of equal size; further ones are allocated on demand, larger ones if more bytes are needed.

    Parameters
    ----------
    slot_bytes : int
        Size of a slot.
    keep : int
        Number of free slots to keep; more are released.
    allocate : callable
        Allocates slots.
    at_once : bool
        Allocate `keep` slots at once; otherwise each in the thread that needs it first.
    """

    def __init__(self, slot_bytes: int, keep: int, allocate: Allocate, at_once: bool = True) -> None:
        self._slot_bytes, self._keep, self._allocate = slot_bytes + PAGE, keep, allocate
        self._fresh = allocate(self._slot_bytes, keep) if at_once else []
        self._out: set[_Held] = set()
        self._back: deque[_Held] = deque()  # appended to by the thread that drops the last reference

    def take(self, count: int, page_offset: int = 0) -> Bytes:
        """Return `count` bytes of a slot, from byte `page_offset` of its first page on.

        The slot is free again when no view of these bytes is left.
        """
        needed = page_offset + count
        if needed > self._slot_bytes:
            self._slot_bytes = int(GROWTH * needed)
        lease = _Lease(self._memory(needed))
        # the callback is not Python code: an exception from a signal handler in it would be lost
        self._out.add(_Held(lease, self._back.append))
        return np.asarray(lease)[page_offset : page_offset + count]

    def close(self) -> None:
        """Release the free slots; slots in use are released with their last view."""
        self._fresh.clear()
        self._out.clear()
        self._back.clear()

    def _memory(self, needed: int) -> Bytes:
        """Return a free slot of at least `needed` bytes; smaller ones are released."""
        while len(self._back) > self._keep:
            self._out.discard(self._back.pop())
        with suppress(IndexError):
            while True:
                held = self._back.pop()
                self._out.discard(held)
                if len(held.memory) >= needed:
                    return held.memory
        with suppress(IndexError):
            while len(memory := self._fresh.pop()) < needed:
                pass
            return memory
        return self._allocate(self._slot_bytes, 1)[0]


class _Lease:
    """The base object of the arrays over a slot, deleted with the last of them."""

    __slots__ = ("__array_interface__", "__weakref__", "memory")

    def __init__(self, memory: Bytes) -> None:
        self.memory = memory
        self.__array_interface__: dict[str, Any] = memory.__array_interface__


class _Held(ref["_Lease"]):
    """Weak reference to a lease; its callback returns the slot."""

    __slots__ = ("memory",)

    def __init__(self, lease: _Lease, give_back: Callable[[Any], None]) -> None:
        self.memory = lease.memory

    def __new__(cls, lease: _Lease, give_back: Callable[[Any], None]) -> _Held:
        """Make a weak reference to the lease."""
        return super().__new__(cls, lease, give_back)

    __hash__ = object.__hash__  # a weak reference's own hash is lost with its referent
    __eq__ = object.__eq__
