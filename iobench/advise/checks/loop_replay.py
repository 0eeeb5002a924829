"""Replay of a loop's first batches from the device: the speed of the best possible loader."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from iobench.host.device import Device
from iobench.loading.inspection import batch_tensors

T = TypeVar("T")

MAX_HELD, MAX_HELD_BYTES = 8, 256 << 20


class LoopReplay(Generic[T]):
    """Holds the first batches of a loop, and yields `count` of them, repeatedly, after its end.

    Tensors are copied to the device, since a loader may reuse their memory.

    Attributes
    ----------
    step_s : float or None
        Seconds of one step over the replayed batches, after the device has finished them all.
    """

    def __init__(self, device: Device, count: int) -> None:
        self._device, self._count, self._held, self._bytes = device, count, list[T](), 0
        self.step_s: float | None = None

    def holding(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the same items, and hold the first ones."""
        for item in items:
            if self._count and len(self._held) < MAX_HELD and self._bytes < MAX_HELD_BYTES:
                self._held.append(self._copied(item))
                self._bytes += sum(one.nbytes for one in batch_tensors(item))
            yield item

    def __iter__(self) -> Iterator[T]:
        if not self._count or not self._held:
            return
        self._device.synchronize()
        began = time.perf_counter()
        for number in range(self._count):
            yield self._held[number % len(self._held)]
        self._device.synchronize()
        self.step_s = (time.perf_counter() - began) / self._count

    def _copied(self, item: T) -> T:
        if "torch" not in sys.modules:
            return item
        import torch
        from torch.utils import _pytree

        def copied(leaf: Any) -> Any:
            return leaf.to(self._device.torch, copy=True) if isinstance(leaf, torch.Tensor) else leaf

        copy: T = _pytree.tree_map(copied, item)
        return copy
