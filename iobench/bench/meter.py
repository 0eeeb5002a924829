"""Times stretches and each `next()` within them; the clock is injected."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np

from iobench.loading.stages import Clock

T = TypeVar("T")


class Durations:
    """How long one thing took each time that it happened; 0 of everything where it never did."""

    def __init__(self) -> None:
        self._ns = array("q")

    def __len__(self) -> int:
        return len(self._ns)

    def note(self, nanoseconds: int) -> None:
        """Add the next one."""
        self._ns.append(nanoseconds)

    @property
    def seconds(self) -> list[float]:
        """Each of them, in order."""
        return [one / 1e9 for one in self._ns]

    @property
    def first_s(self) -> float:
        """Seconds of the first one."""
        return self._ns[0] / 1e9 if self._ns else 0.0

    @property
    def total_s(self) -> float:
        """Seconds of all of them together."""
        return sum(self._ns) / 1e9

    def quantile_s(self, quantile: float) -> float:
        """The seconds that this fraction of them did not exceed."""
        return float(np.quantile(self._ns, quantile)) / 1e9 if self._ns else 0.0


class Meter:
    """Stretches of time, each a `with` block, added up; and how long the consumer waited within them."""

    def __init__(self, clock: Clock = time.perf_counter_ns) -> None:
        self._clock = clock
        self._started = self._elapsed = 0
        self.waits = Durations()  # for each item; what starting the iterator costs is in the first

    def __enter__(self) -> Meter:
        self._started = self._clock()
        return self

    def __exit__(self, *exc: object) -> None:
        self._elapsed += self._clock() - self._started

    def over(self, items: Iterable[T]) -> Iterator[T]:
        """The same items; how long the consumer was blocked for each is noted."""
        clock, note = self._clock, self.waits.note
        before = clock()
        for item in items:
            note(clock() - before)
            yield item
            before = clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds of all stretches."""
        return self._elapsed / 1e9
