"""Memory for batches, used again once whoever holds a batch has let go of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.memory import PAGE

Bytes = npt.NDArray[np.uint8]


class Ring:
    """Equal slots of memory. There is always another one; at most `keep` of them wait for use."""

    def __init__(self, slot_bytes: int, keep: int, allocate: Callable[[int], Bytes]) -> None:
        self._slot_bytes, self._keep, self._allocate = slot_bytes + PAGE, keep, allocate
        # a deque, because slots come back from whichever thread drops the last reference
        self._free: deque[Bytes] = deque(allocate(self._slot_bytes) for _ in range(keep))

    def take(self, count: int, phase: int = 0) -> Bytes:
        """`count` bytes of a slot, from byte `phase` of a page on; free when no view of them is left."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = self._allocate(self._slot_bytes)
        return np.asarray(_Lease(self, memory))[phase : phase + count]

    def give_back(self, memory: Bytes) -> None:
        """Take back a slot that nobody holds."""
        if len(self._free) < self._keep:
            self._free.append(memory)

    def close(self) -> None:
        """Let go of the slots; those in use go when they are let go of."""
        self._keep = 0
        self._free.clear()


class _Lease:
    """What the arrays over a slot refer to: it goes when the last of them does."""

    __slots__ = ("__array_interface__", "_memory", "_ring")

    def __init__(self, ring: Ring, memory: Bytes) -> None:
        self._ring, self._memory = ring, memory
        self.__array_interface__: dict[str, Any] = memory.__array_interface__

    def __del__(self) -> None:
        self._ring.give_back(self._memory)
