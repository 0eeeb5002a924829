"""Batches that a loop has had already, on the device, once more: what the best possible loader would give."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from iobench.host.device import Device
from iobench.loading.foreign import tensors_of

T = TypeVar("T")

MOST_HELD, HELD_BYTES = 8, 256 << 20


class LoopReplay(Generic[T]):
    """Holds the first batches of a loop, and gives `count` of them, over and over, once it has ended.

    Tensors are copied to the device, since a loader may fill the same memory again. `step_s` is then what a
    step of the loop took, the device being done with all of them.
    """

    def __init__(self, device: Device, count: int) -> None:
        self._device, self._count, self._held, self._bytes = device, count, list[T](), 0
        self.step_s: float | None = None

    def held(self, items: Iterable[T]) -> Iterator[T]:
        """The same items; the first ones are kept."""
        for item in items:
            if self._count and len(self._held) < MOST_HELD and self._bytes < HELD_BYTES:
                self._held.append(self._copied(item))
                self._bytes += sum(one.nbytes for one in tensors_of(item))
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

        made: T = _pytree.tree_map(copied, item)
        return made
