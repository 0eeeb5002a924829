"""Last step of a batch: it stays in host memory or goes to a device."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch

from iobench.base.errors import LoaderFailed
from iobench.base.text import reason
from iobench.base.units import bytes_text
from iobench.host.device import Accelerator, Device, device_of
from iobench.host.memory import PAGE, Bytes, untouched_array
from iobench.loading.host_to_device import SideStreamCopier, side_copier
from iobench.loading.tensors import tensors_in

Tensors = dict[str, Any]  # a tensor per field, or a Ragged of two

COPIED = "_iobench_copied"  # attribute of a tensor: the event behind its copy
MAX_BEHIND = 2  # groups of batches that the consumer's stream may lag behind


class Transfer:
    """Leaves batches in ordinary host memory."""

    at_once = False  # True to allocate all slots in one call, False to allocate each when it is needed
    on_host = True  # False if batches go to a device

    def allocate(self, count: int, slots: int) -> list[Bytes]:
        """Return `slots` slots of `count` bytes, which are touched as they are filled.

        Touched before, they would keep the first batch of cold data waiting, some of them in vain.
        """
        return [untouched_array(count) for _ in range(slots)]

    def send(self, batches: list[Tensors]) -> list[Tensors]:
        """Return the batches on the target device; unreferenced host memory may be reused."""
        return batches

    def hand_over(self, batch: Tensors) -> None:
        """Complete the transfer of a batch, in the consumer's thread."""


class BlockingTransfer(Transfer):
    """Copies batches to a device without side streams, and waits for each copy."""

    on_host = False

    def __init__(self, device_api: Device) -> None:
        self._device_api = device_api

    def send(self, batches: list[Tensors]) -> list[Tensors]:
        """Return the batches on the device."""
        return [{name: t.to(self._device_api.torch) for name, t in batch.items()} for batch in batches]


class SideStreamTransfer(Transfer):
    """Copies batches from pinned memory in the device's side stream, concurrently with the consumer's work.

    Device memory comes from torch's allocator and belongs to the consumer. Neither the reading threads nor
    the consumer's thread waits for copies: the consumer's stream does. If that stream lags, the consumer
    waits, so that the device holds only a few groups of batches.
    """

    at_once = True  # pinning a small block takes as long as pinning a large one
    on_host = False

    def __init__(self, device_api: Accelerator) -> None:
        self._device_api = device_api
        self._side: SideStreamCopier = side_copier(device_api)
        self._behind: deque[Any] = deque()
        self._last: Any = None

    def allocate(self, count: int, slots: int) -> list[Bytes]:
        """Return `slots` slots of `count` bytes, cut from as few bytes of pinned memory as possible.

        Raises LoaderFailed if the system refuses to pin more.
        """
        size = -(-count // PAGE) * PAGE
        memory: list[Bytes] = []
        for pinned, held in pinned_blocks(size, slots):
            try:
                block = self._device_api.memory(pinned)
            except (RuntimeError, MemoryError) as error:
                problem = f"{bytes_text(pinned)} of memory cannot be pinned: {reason(error)}"
                hint = "use a smaller batch size or fewer threads"
                raise LoaderFailed(problem, "out-of-memory", hint=hint) from error
            memory += [block[number * size :][:count] for number in range(held)]
        return memory

    def send(self, batches: list[Tensors]) -> list[Tensors]:
        """Start the copies and return the batches on the device."""
        moved, copied = self._side.copy(batches)
        for tensor in (tensor for batch in moved for tensor in tensors_in(batch)):
            vars(tensor)[COPIED] = copied
        return moved

    def hand_over(self, batch: Tensors) -> None:
        """Make the consumer's stream wait for the copies.

        The batch's memory is not reused before the consumer's stream has finished with it.
        """
        stream = self._device_api.current_stream()
        for tensor in tensors_in(batch):
            copied = _copied(tensor)
            if copied is not None and copied is not self._last:
                self._last = copied
                self.limit_lag(stream)
                stream.wait_event(copied)
            tensor.record_stream(stream)

    def limit_lag(self, stream: Any) -> None:
        """Wait while the consumer's stream is too many batches behind."""
        event = self._device_api.event()
        event.record(stream)
        self._behind.append(event)
        with suppress(IndexError):  # another consumer took it, and waits for it
            if len(self._behind) > MAX_BEHIND:
                self._behind.popleft().synchronize()


def transfer_to(device: torch.device) -> Transfer:
    """Return the transfer for a device."""
    device_api = device_of(device)
    if isinstance(device_api, Accelerator) and device_api.side_streams:
        return side_stream_transfer(device_api)
    return Transfer() if device_api.is_host else BlockingTransfer(device_api)


@functools.cache
def side_stream_transfer(device_api: Accelerator) -> SideStreamTransfer:
    """Return the transfer to a device, the same one for the life of the process.

    With one for each epoch, short epochs would never wait for a consumer's stream that lags behind.
    """
    return SideStreamTransfer(device_api)


def pinned_blocks(size: int, slots: int) -> Iterator[tuple[int, int]]:
    """Yield the blocks to allocate for `slots` slots of `size` bytes: bytes and number of slots of each.

    Pinned memory is allocated in powers of two: a slot of 4 MiB and one page would take 8 MiB by itself,
    while seven of them fit into 32 MiB.
    """
    while slots:
        sizes = [1 << (size * held - 1).bit_length() for held in range(1, slots + 1)]
        pinned = min(sizes, key=lambda block: (block / min(slots, block // size), -block))
        held = min(slots, pinned // size)
        yield pinned, held
        slots -= held


def _copied(tensor: torch.Tensor) -> Any:
    """Return the event behind the copy of a tensor or of the tensor that it is a view of, else None.

    Removes it from the consumer's tensor, because an event can be neither saved nor sent.
    """
    own = vars(tensor).pop(COPIED, None)
    return own if own is not None or tensor._base is None else vars(tensor._base).get(COPIED)
