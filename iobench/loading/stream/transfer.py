"""The last step of a batch: to stay in host memory, or to go to a device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from iobench.base.errors import (
    LoaderFailed,
)
from iobench.base.text import reason
from iobench.host.device import Accelerator, Device, device_of
from iobench.host.memory import PAGE, touched_array
from iobench.loading.host_to_device import SideStreamCopier, side_copier

Tensors = dict[str, torch.Tensor]
Bytes = npt.NDArray[np.uint8]

COPIED = "_iobench_copied"  # of a tensor: the event behind its copy
MAX_BEHIND = 2  # groups of batches that the consumer's stream may have before it when it gets another


class Transfer:
    """Leaves batches where they are, in ordinary memory."""

    at_once = False  # whether memory for all slots is had in one call, or for each when it is needed

    def allocate(self, count: int, slots: int) -> list[Bytes]:
        """Memory for so many slots."""
        return [touched_array(count) for _ in range(slots)]

    def send(self, batches: list[Tensors]) -> list[Tensors]:
        """The batches where the consumer wants them; host memory may be used again if nobody holds it."""
        return batches

    def hand_over(self, batch: Tensors) -> None:
        """Called in the consumer's thread for each batch that it gets."""


class BlockingTransfer(Transfer):
    """Copies batches to a device that has no stream to spare, and waits for each."""

    def __init__(self, device_api: Device) -> None:
        self._device_api = device_api

    def send(self, batches: list[Tensors]) -> list[Tensors]:
        """The batches on the device."""
        return [{name: t.to(self._device_api.torch) for name, t in batch.items()} for batch in batches]


class SideStreamTransfer(Transfer):
    """Copies batches out of pinned memory on the device's side stream, beside the consumer's work.

    Device memory comes from torch's allocator and belongs to the consumer. Whoever reads goes on
    while copies are under way, and so does the consumer: its stream waits for them. Where its stream
    falls behind, the consumer waits, so that the device holds a few groups of batches and not all.
    """

    at_once = True  # pinning a little takes as long as pinning much

    def __init__(self, device_api: Accelerator) -> None:
        self._device_api = device_api
        self._side: SideStreamCopier = side_copier(device_api)
        self._behind: deque[Any] = deque()
        self._last: Any = None

    def allocate(self, count: int, slots: int) -> list[Bytes]:
        """Pinned memory for so many slots, cut from as little of it as there can be.

        LoaderFailed where the system pins no more.
        """
        size = -(-count // PAGE) * PAGE
        found: list[Bytes] = []
        for pinned, held in pinned_blocks(size, slots):
            try:
                block = self._device_api.memory(pinned)
            except (RuntimeError, MemoryError) as error:
                raise LoaderFailed(
                    f"pinning {pinned} bytes of memory: {reason(error)}; use less of it"
                ) from error
            found += [block[number * size :][:count] for number in range(held)]
        return found

    def send(self, batches: list[Tensors]) -> list[Tensors]:
        """The batches on the device, their copies under way."""
        moved, copied = self._side.copy(batches)
        for tensor in (tensor for batch in moved for tensor in batch.values()):
            vars(tensor)[COPIED] = copied
        return moved

    def hand_over(self, batch: Tensors) -> None:
        """Have the consumer's stream wait for the copies, and keep the memory from whoever comes next.

        That memory is not given out again before the consumer's stream is through with it.
        """
        stream = self._device_api.current_stream()
        for tensor in batch.values():
            copied = _copied(tensor)
            if copied is not None and copied is not self._last:
                self._last = copied
                self._not_too_far(stream)
                stream.wait_event(copied)
            tensor.record_stream(stream)

    def _not_too_far(self, stream: Any) -> None:
        event = self._device_api.event()
        event.record(stream)
        self._behind.append(event)
        if len(self._behind) > MAX_BEHIND:
            self._behind.popleft().synchronize()


def transfer_to(device: torch.device) -> Transfer:
    """How batches get to a device."""
    device_api = device_of(device)
    if isinstance(device_api, Accelerator) and device_api.side_streams:
        return SideStreamTransfer(device_api)
    return Transfer() if device_api.is_host else BlockingTransfer(device_api)


def pinned_blocks(size: int, slots: int) -> Iterator[tuple[int, int]]:
    """Blocks of memory that together hold so many slots: the bytes of each, and how many it holds.

    Pinned memory comes in powers of two: a slot of 4 MiB and a page would get 8 MiB for itself,
    while seven of them fit into 32.
    """
    while slots:
        sizes = [1 << (size * held - 1).bit_length() for held in range(1, slots + 1)]
        pinned = min(sizes, key=lambda block: (block / min(slots, block // size), -block))
        held = min(slots, pinned // size)
        yield pinned, held
        slots -= held


def _copied(tensor: torch.Tensor) -> Any:
    """The event behind the copy of a tensor or, where it is a part of one, of the whole.

    Taken off what the consumer gets: an event can neither be saved nor sent.
    """
    own = vars(tensor).pop(COPIED, None)
    return own if own is not None or tensor._base is None else vars(tensor._base).get(COPIED)
