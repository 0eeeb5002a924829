"""Host memory → device: in the consumer's own thread, or beside it on a stream of its own."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import torch

from iobench.base.errors import (
    LoaderFailed,
)
from iobench.host.device import Accelerator, device_of

__all__ = ["DeviceBatch", "HostBatch", "HostToDevice", "SideStreamCopier", "device_errors", "side_copier"]

HostBatch: TypeAlias = Any  # dict[str, Tensor], or a tensorclass of the same fields
DeviceBatch = dict[str, torch.Tensor]

MAX_COPIES = 2  # of groups of batches under way: one that is copied, and the next one behind it
LAG_ELEMENTS, LAG_TURNS = 1 << 20, 64  # a few milliseconds of a large GPU


class HostToDevice:
    """Moves host batches to a device: identity on the CPU, one `.to` per tensor elsewhere.

    Every batch that enters is either fresh or pageable, so no buffer is reused while a
    non-blocking copy may still read it: torch's pinned allocator keeps freed blocks until then.
    The device is made the thread's current one, to which DataLoader's pinning thread holds.
    """

    def __init__(self, device: torch.device, non_blocking: bool) -> None:
        self.device_api = device_of(device)
        self.device_api.use()
        self._non_blocking = non_blocking

    @property
    def device(self) -> torch.device:
        """Where batches go."""
        return self.device_api.torch

    def move(self, batch: HostBatch) -> DeviceBatch:
        """The batch on the device; elsewhere than on the CPU its copies may still be under way.

        The consumer's stream runs them before whatever it is asked for next.
        """
        if self.device_api.is_host:
            return dict(batch.items())
        if isinstance(batch, dict):
            return {name: self._to(tensor) for name, tensor in batch.items()}
        return dict(self._to(batch).items())

    def synchronize(self) -> None:
        """Wait until everything asked of the device is done."""
        self.device_api.synchronize()

    def release_memory(self) -> None:
        """Give back the device memory that earlier cases left with torch, and forget peaks."""
        self.device_api.synchronize()
        if isinstance(self.device_api, Accelerator) and self.device_api.side_streams:
            side_copier(self.device_api).release(0)
        self.device_api.empty_caches()
        self.device_api.reset_peak()

    def reset_peak(self) -> None:
        """Forget the device's peak memory."""
        self.device_api.reset_peak()

    def peak_bytes(self) -> tuple[int, int] | None:
        """Most memory (allocated, reserved) on the device since `reset_peak`; None where nobody counts."""
        return self.device_api.peak_bytes()

    def lag(self) -> None:
        """Keep the consumer's stream busy for a while, so that what it is asked for next comes late.

        A batch whose memory is used again too soon is still right where the consumer is never late.
        """
        if not self.device_api.is_host:
            busy = torch.ones(LAG_ELEMENTS, device=self.device)
            for _ in range(LAG_TURNS):
                busy.mul_(1.0)

    def _to(self, tensor: Any) -> Any:
        return tensor.to(self.device, non_blocking=self._non_blocking)


class SideStreamCopier:
    """Copies on a device's one side stream, and the host memory that they still read."""

    def __init__(self, device_api: Accelerator) -> None:
        self.device_api, self._stream = device_api, device_api.side_stream
        self._reading: deque[tuple[Any, Any]] = deque()  # events and what they guard; of any thread

    def copy(self, batches: list[DeviceBatch]) -> tuple[list[DeviceBatch], Any]:
        """The batches on the device, and the event behind their copies, which are under way.

        Their host memory is held until the copies have left it: threads wait only for those that
        are more than two groups behind.
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
        """Let go of host memory that was copied; wait until at most so many groups are under way."""
        while (oldest := self._oldest(most)) is not None:
            oldest[0].synchronize()  # sleeps, without the interpreter's lock

    def _oldest(self, most: int) -> tuple[Any, Any] | None:
        with suppress(IndexError):  # another thread was quicker: what anybody takes, they wait for
            if len(self._reading) > most or self._reading[0][0].query():
                return self._reading.popleft()
        return None


@functools.cache
def side_copier(device_api: Accelerator) -> SideStreamCopier:
    """What goes on beside a device's consumers: one for the life of the process."""
    return SideStreamCopier(device_api)


@contextmanager
def device_errors(what: str) -> Iterator[None]:
    """Make LoaderFailed, in one line, of what a device, its memory or pinned memory refuses in a block.

    The case cannot go on; the run can. After an error in a kernel the device may refuse everything
    until the process ends: then the cases that follow fail with the same line.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise LoaderFailed(f"{what}: {_first(error)}; use a smaller --batch-size") from error
    except torch.AcceleratorError as error:
        raise LoaderFailed(f"{what}: the device failed: {_first(error)}; see its driver's log") from error


def _first(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0].partition(". ")[0]
    return first.removesuffix(".") or type(error).__name__
