"""Where an epoch's time goes as the device sees it: computing, or waiting for the next batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from iobench.host.device import Device
from iobench.host.marks import Mark

Batch = TypeVar("Batch")


class DeviceClock:
    """Marks in the consumer's stream, around each step: nobody waits for the device to set them.

    A step's time is *computing*; the time between the end of one step and the beginning of the next
    is *waiting*: for the disk, for the host, and for a copy in the consumer's own stream. It is
    idle time of the device, not of the host, which may be many steps ahead of it. On the CPU both
    are one thing, and the host's clock is read.

    `strict`: synchronise after each step, as a loop does that looks at its loss: then copies and
    steps do not overlap, and the host's own waits can be compared with these.

    A context: the device is idle when it is entered and when it is left; after an error nothing is read.
    """

    def __init__(self, device: Device, strict: bool = False) -> None:
        self._device, self._strict = device, strict
        self._pending: deque[tuple[Mark, Mark]] = deque()  # where each step begins and ends
        self._last: Any = None
        self.compute_s = 0.0
        self.wait_s = 0.0
        self.first_batch_s = 0.0  # until the device could begin with the first batch
        self.steps = 0

    def __enter__(self) -> DeviceClock:
        self._device.synchronize()
        self._last = self._device.mark()
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is None:
            self._device.synchronize()
            self._read()

    def around(self, step: Callable[[Batch], object]) -> Callable[[Batch], None]:
        """The step, with a mark before and one behind it."""

        def run(batch: Batch) -> None:
            begins = self._device.mark()
            step(batch)
            self._pending.append((begins, self._device.mark()))
            if self._strict:
                self._device.synchronize()
            self._read()

        return run

    def _read(self) -> None:
        """Add up the steps that the device is through with, so that marks do not pile up."""
        while self._pending and self._pending[0][1].reached():
            begins, ends = self._pending.popleft()
            waited = begins.seconds_since(self._last)
            if not self.steps:
                self.first_batch_s = waited
            self.wait_s += waited
            self.compute_s += ends.seconds_since(begins)
            self._last, self.steps = ends, self.steps + 1
