"""Replay of a loop's first batches from the device: the speed of the best possible loader."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from iobench.formats import Ragged
from iobench.host.device import Device
from iobench.loading.collate import COLLATED
from iobench.loading.inspection import batch_tensors

T = TypeVar("T")

MAX_HELD, MAX_HELD_BYTES = 16, 256 << 20


class Replay(Generic[T]):
    """The first batches of a loop, copied to a device, as a loader of `count` batches.

    Tensors are copied even on the CPU, since a loader may reuse their memory.
    """

    def __init__(self, device: Device, count: int = 0) -> None:
        self.device, self.count, self.held, self._bytes = device, count, list[T](), 0

    def hold(self, batch: T) -> None:
        """Store a copy of a batch, up to 16 batches or 256 MiB."""
        if len(self.held) < MAX_HELD and self._bytes < MAX_HELD_BYTES:
            self.held.append(self._copied(batch))
            self._bytes += sum(one.nbytes for one in batch_tensors(batch))

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[T]:
        for number in range(self.count if self.held else 0):
            yield self.held[number % len(self.held)]

    def _copied(self, batch: T) -> T:
        if "torch" not in sys.modules:
            return batch
        import torch
        from torch.utils import _pytree

        def copied(leaf: Any) -> Any:
            moves = isinstance(leaf, (torch.Tensor, Ragged, *COLLATED))
            return leaf.to(self.device.torch, copy=True) if moves else leaf

        copy: T = _pytree.tree_map(copied, batch)
        return copy
