"""Where a loop's time goes as the device sees it: computing, or waiting for the next batch."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from iobench.bench.meter import Durations
from iobench.host.device import Device
from iobench.host.device.marks import Mark

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
    A loop of somebody else's, whose device is not ours to wait for, says `begin` and `settle` instead.
    """

    def __init__(self, device: Device, strict: bool = False) -> None:
        self._device, self._strict = device, strict
        self._marks: deque[Mark] = deque()  # where each step begins and ends, in turn
        self._last: Any = None
        self.waits, self.steps = Durations(), Durations()

    def __enter__(self) -> DeviceClock:
        self._device.synchronize()
        self.begin()
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is None:
            self._device.synchronize()
            self._read()

    def around(self, step: Callable[[Batch], object]) -> Callable[[Batch], None]:
        """The step, with a mark before and one behind it."""

        def run(batch: Batch) -> None:
            self._mark()
            step(batch)
            self._mark()
            if self._strict:
                self._device.synchronize()
            self._read()

        return run

    def over(self, items: Iterable[Batch]) -> Iterator[Batch]:
        """The same items, with a mark before and one behind what is done with each."""
        for item in items:
            self._mark()
            yield item
            self._mark()
            self._read()

    def begin(self) -> None:
        """Count from here: from the end of what the device was asked for so far."""
        self._last = self._device.mark()

    def settle(self, seconds: float) -> None:
        """Read what the device gets through within that time, and raise nothing: it may hang, or be lost."""
        if not self._device.is_host:
            waiting = threading.Thread(target=self._quietly, args=(self._device.synchronize,), daemon=True)
            waiting.start()
            waiting.join(seconds)
        self._quietly(self._read)

    def _quietly(self, call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the device's own error, which whoever works with it meets, too
            call()

    def _mark(self) -> None:
        self._marks.append(self._device.mark())

    def _read(self) -> None:
        """Note what the device is through with, so that marks do not pile up."""
        while self._marks and self._marks[0].reached():
            mark = self._marks.popleft()
            ended = self.steps if len(self.waits) > len(self.steps) else self.waits
            ended.note(round(mark.seconds_since(self._last) * 1e9))
            self._last = mark
