"""Time of Python's garbage collector."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any


class CollectorTime:
    """Time that the collector takes in the thread of a `with` block, in `ns`."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock, self.ns = clock, 0
        self._thread = self._began = 0

    def __enter__(self) -> CollectorTime:
        self._thread = threading.get_ident()
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: Mapping[str, Any]) -> None:
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._began = self._clock()
        else:
            self.ns += self._clock() - self._began
