"""Copies from host memory to a device, in the consumer's stream or in a side stream."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from iobench.base.errors import LoaderFailed
from iobench.host.device import Accelerator, device_of, is_device_error
from iobench.loading.tensors import HostBatch

__all__ = ["DeviceBatch", "HostBatch", "HostToDevice", "SideStreamCopier", "device_errors", "side_copier"]

DeviceBatch = dict[str, Any]  # a tensor per field, or a Ragged of two

MAX_COPIES = 2  # groups of batches in flight: one being copied and the next one
LAG_ELEMENTS, LAG_TURNS = 1 << 20, 64  # a few milliseconds of a large GPU


class HostToDevice:
    """Moves host batches to a device: no copy on the CPU, one `.to` per tensor elsewhere.

    Every batch is either in new or in pageable memory. No buffer is reused while a non-blocking copy may
    still read it: torch's pinned allocator keeps freed blocks until then. The device becomes the thread's
    current one, which DataLoader's pinning thread uses.
    """

    def __init__(self, device: torch.device, non_blocking: bool) -> None:
        self.device_api = device_of(device)
        self.device_api.use()
        self._non_blocking = non_blocking

    @property
    def device(self) -> torch.device:
        """The device that batches go to."""
        return self.device_api.torch

    def move(self, batch: HostBatch) -> DeviceBatch:
        """Return the batch on the device; its copies may still be in flight.

        The consumer's stream completes them before any work submitted later.
        """
        if self.device_api.is_host:
            return dict(batch.items())
        if isinstance(batch, dict):
            return {name: self._to(tensor) for name, tensor in batch.items()}
        return dict(self._to(batch).items())

    def synchronize(self) -> None:
        """Wait until all work submitted to the device is done."""
        self.device_api.synchronize()

    def release_memory(self) -> None:
        """Release the device memory that torch caches from earlier cases, and reset the peaks."""
        self.device_api.synchronize()
        if isinstance(self.device_api, Accelerator) and self.device_api.side_streams:
            side_copier(self.device_api).release(0)
        self.device_api.empty_caches()
        self.device_api.reset_peak()

    def reset_peak(self) -> None:
        """Reset the device's peak memory."""
        self.device_api.reset_peak()

    def peak_bytes(self) -> tuple[int, int] | None:
        """Return peak memory (allocated, reserved) in bytes since `reset_peak`; None if not counted."""
        return self.device_api.peak_bytes()

    def lag(self) -> None:
        """Keep the consumer's stream busy for a while, so that later work in it is delayed.

        A loader that reuses a batch's memory too early would go unnoticed if the consumer were never late.
        """
        if not self.device_api.is_host:
            busy = torch.ones(LAG_ELEMENTS, device=self.device)
            for _ in range(LAG_TURNS):
                busy.mul_(1.0)

    def _to(self, tensor: Any) -> Any:
        return tensor.to(self.device, non_blocking=self._non_blocking)


class SideStreamCopier:
    """Copies batches in a device's side stream, and holds their host memory while it is read."""

    def __init__(self, device_api: Accelerator) -> None:
        self.device_api, self._stream = device_api, device_api.side_stream
        self._reading: deque[tuple[Any, Any]] = deque()  # events and the batches behind them; thread-safe

    def copy(self, batches: list[DeviceBatch]) -> tuple[list[DeviceBatch], Any]:
        """Start copies of the batches; return the device batches and the event behind the copies.

        The host memory is held until the copies are done. A thread waits only for copies that are more than
        MAX_COPIES groups behind.
        """
        device = self.device_api.torch
        with self.device_api.on(self._stream):  # and on its device
            moved = [{name: t.to(device, non_blocking=True) for name, t in b.items()} for b in batches]
            copied = self.device_api.event()
            copied.record(self._stream)
            self._reading.append((copied, batches))
        self.release(MAX_COPIES)
        return moved, copied

    def release(self, most: int) -> None:
        """Release host memory that was copied; wait until at most `most` groups are in flight."""
        while (oldest := self._oldest(most)) is not None:
            oldest[0].synchronize()  # sleeps without the GIL

    def _oldest(self, most: int) -> tuple[Any, Any] | None:
        with suppress(IndexError):  # another thread took it, and waits for it
            if len(self._reading) > most or self._reading[0][0].query():
                return self._reading.popleft()
        return None


@functools.cache
def side_copier(device_api: Accelerator) -> SideStreamCopier:
    """Return the copier of a device, the same one for the life of the process."""
    return SideStreamCopier(device_api)


@contextmanager
def device_errors(what: str) -> Iterator[None]:
    """Turn errors of a device, of its memory or of pinned memory in the block into LoaderFailed.

    The case fails, the run continues. After an error in a kernel the device may refuse all work until the
    process ends; then the following cases fail with the same error.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise LoaderFailed(
            f"{what}: {_first(error)}", kind="out-of-memory", hint="use a smaller --batch-size"
        ) from error
    except RuntimeError as error:
        if not is_device_error(error):
            raise
        raise LoaderFailed(
            f"{what}: the device failed: {_first(error)}",
            kind="device-failed",
            hint="see the log of its driver",
        ) from error


def _first(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0].partition(". ")[0]
    return first.removesuffix(".") or type(error).__name__
