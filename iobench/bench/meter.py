"""Timers for intervals and for each `next()` within them, with an injectable clock."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np

from iobench.loading.stages import Clock

T = TypeVar("T")


class Durations:
    """Durations of a repeated event; all statistics are 0 if it never happened."""

    def __init__(self) -> None:
        self._ns = array("q")

    def __len__(self) -> int:
        return len(self._ns)

    def note(self, nanoseconds: int) -> None:
        """Append one duration."""
        self._ns.append(nanoseconds)

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
