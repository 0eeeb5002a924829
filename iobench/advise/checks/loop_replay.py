"""Timed replay of a loop's first batches after its end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from iobench.loading.replay import Replay

T = TypeVar("T")


class LoopReplay(Replay[T]):
    """Holds the first batches of a loop, and yields `count` of them, repeatedly, after its end."""

    step_s: float | None = None  # of one step, once the device has finished them all

    def holding(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the same items, and hold the first ones."""
        for item in items:
            if self.count:
                self.hold(item)
            yield item

    def __iter__(self) -> Iterator[T]:
        if not self.count or not self.held:
            return
        self.device.synchronize()
        began = time.perf_counter()
        yield from super().__iter__()
        self.device.synchronize()
        self.step_s = (time.perf_counter() - began) / self.count
