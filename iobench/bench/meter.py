"""Timers of intervals and of each `next()` within them, by the clocks of the host and of a device."""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from iobench.host.device import Device, Mark
from iobench.loading.stages import Clock

T = TypeVar("T")


class Durations:
    """Durations of a repeated event; all statistics are 0 if it never happened."""

    def __init__(self) -> None:
        self._ns = array("q")
        self.note = self._ns.append  # a duration in nanoseconds

    def __len__(self) -> int:
        return len(self._ns)

    @property
    def seconds(self) -> list[float]:
        """All durations in seconds, in order."""
        return [one / 1e9 for one in self._ns]

    @property
    def first_s(self) -> float:
        """First duration in seconds."""
        return self._ns[0] / 1e9 if self._ns else 0.0

    @property
    def total_s(self) -> float:
        """Sum of all durations in seconds."""
        return sum(self._ns) / 1e9

    def quantile_s(self, quantile: float) -> float:
        """Return the quantile (0 to 1) of the durations in seconds."""
        return float(np.quantile(self._ns, quantile)) / 1e9 if self._ns else 0.0


class Meter:
    """Total time of `with` blocks, and how long the consumer waited for items within them."""

    def __init__(self, clock: Clock = time.perf_counter_ns) -> None:
        self._clock = clock
        self._started = self._elapsed = 0
        self.waits = Durations()  # one per item; the first includes the start of the iterator

    def __enter__(self) -> Meter:
        self._started = self._clock()
        return self

    def __exit__(self, *exc: object) -> None:
        self._elapsed += self._clock() - self._started

    def over(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the same items and note how long the consumer was blocked for each."""
        clock, note = self._clock, self.waits.note
        before = clock()
        for item in items:
            note(clock() - before)
            yield item
            before = clock()

    @property
    def elapsed_s(self) -> float:
        """Total seconds of all blocks."""
        return self._elapsed / 1e9


Batch = TypeVar("Batch")


class DeviceClock:
    """Events recorded in the consumer's stream around each step, without synchronization.

    The time of a step is *computing*. The time between the end of one step and the start of the next is
    *waiting*: for the disk, for the host, and for a copy in the consumer's own stream. It is idle time of
    the device, not of the host, which may be many steps ahead. On the CPU both are the same, and the
    host's clock is read.

    As a context manager it synchronizes the device on entry and exit; after an error nothing is read.
    For a user's own loop, whose device must not be synchronized, call `begin` and `settle` instead.

    A `strict` one synchronizes after each step, as a loop does that reads its loss. Copies and steps then do
    not overlap, and the host's waits are comparable with these.
    """

    def __init__(self, device: Device, strict: bool = False) -> None:
        self._device, self._strict = device, strict
        self._marks: deque[Mark] = deque()  # start and end of each step, in order
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
        """Return the step with an event recorded before and after it."""

        def run(batch: Batch) -> None:
            self._mark()
            step(batch)
            self._mark()
            if self._strict:
                self._device.synchronize()
            self._read()

        return run

    def over(self, items: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the same items, with an event recorded before and after the consumer's work on each."""
        if self._device.is_host:
            yield from self._on_host(items)
            return
        for item in items:
            self._mark()
            yield item
            self._mark()
            self._read()

    def _on_host(self, items: Iterable[Batch]) -> Iterator[Batch]:
        waited, worked, clock = self.waits.note, self.steps.note, time.perf_counter_ns
        before = clock() - round(self._device.mark().seconds_since(self._last) * 1e9)
        for item in items:
            now = clock()
            waited(now - before)
            yield item
            before = clock()
            worked(before - now)

    def begin(self) -> None:
        """Start counting at the end of the work queued on the device so far."""
        self._last = self._device.mark()

    def settle(self, seconds: float) -> None:
        """Read the events that complete within `seconds`; never raise, because the device may hang."""
        if not self._device.is_host:
            waiting = threading.Thread(target=self._quietly, args=(self._device.synchronize,), daemon=True)
            waiting.start()
            waiting.join(seconds)
        self._quietly(self._read)

    def _quietly(self, call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # an error of the device, which the loop itself meets as well
            call()

    def _mark(self) -> None:
        self._marks.append(self._device.mark())

    def _read(self) -> None:
        """Consume completed events, so that they do not accumulate."""
        while self._marks and self._marks[0].reached():
            mark = self._marks.popleft()
            ended = self.steps if len(self.waits) > len(self.steps) else self.waits
            ended.note(round(mark.seconds_since(self._last) * 1e9))
            self._last = mark
