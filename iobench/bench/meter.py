"""Times stretches and each `next()` within them; the clock is injected."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np

from iobench.loading.stages import Clock

T = TypeVar("T")


class Meter:
    """Stretches of time, each a `with` block, added up; and how long the consumer waited within them."""

    def __init__(self, clock: Clock = time.perf_counter_ns) -> None:
        self._clock = clock
        self._waits = array("q")
        self._started = self._elapsed = 0

    def __enter__(self) -> Meter:
        self._started = self._clock()
        return self

    def __exit__(self, *exc: object) -> None:
        self._elapsed += self._clock() - self._started

    def over(self, items: Iterable[T]) -> Iterator[T]:
        """The same items; how long the consumer was blocked for each is noted."""
        clock, note = self._clock, self._waits.append
        before = clock()
        for item in items:
            note(clock() - before)
            yield item
            before = clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds of all stretches."""
        return self._elapsed / 1e9

    @property
    def first_wait_s(self) -> float:
        """Seconds until the first item, what `iter()` starts included; 0 without items."""
        return self._waits[0] / 1e9 if self._waits else 0.0

    @property
    def wait_s(self) -> float:
        """Seconds blocked, all items together."""
        return sum(self._waits) / 1e9

    def wait_quantile_s(self, quantile: float) -> float:
        """The wait in seconds that this fraction of the items did not exceed; 0 without items."""
        return float(np.quantile(self._waits, quantile)) / 1e9 if self._waits else 0.0
