"""Compute the offsets of an epoch's rows ahead of the threads that gather them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from iobench.formats import Rows
from iobench.stream.addresses import MAX_LISTED, Index, Locate
from iobench.stream.views import base_from, offset_in

PIECE_ROWS = 1 << 16  # located by one call: 0.5 ms


class OffsetPrefetch:
    """Applies each of `locates` to an epoch's rows in a thread of its own, in the order of the epoch.

    A thread waits for the GIL after each NumPy call, and locating a group's rows takes up to four calls. The
    offsets of rows that the thread has not reached, or that are not in the epoch, are unknown.
    """

    def __init__(self, locates: Mapping[str, Locate], batches: Sequence[Rows]) -> None:
        first = batches[0] if batches and locates else slice(0)
        # all following batches are views of the same array
        rest = None if isinstance(first, slice) else base_from(first)
        self._rows = rest if rest is not None and len(rest) <= MAX_LISTED else np.empty(0, np.int64)
        self._locates = dict(locates)
        self._offsets = {name: np.empty(len(self._rows), np.int64) for name in locates}
        self._reached, self._stopping = 0, False
        self._thread = threading.Thread(target=self._work, name="iobench-offsets", daemon=True)
        if len(self._rows):
            self._thread.start()

    def of(self, name: str, rows: Index) -> Index | None:
        """Return the offsets of these rows of a field, or None if they are unknown."""
        begin = offset_in(self._rows, rows) if name in self._offsets else None
        if begin is None or begin + len(rows) > self._reached:
            return None
        return self._offsets[name][begin : begin + len(rows)]

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        with suppress(Exception):  # the thread that gathers these rows raises it as well
            for low in range(0, len(self._rows), PIECE_ROWS):
                if self._stopping:
                    return
                piece = self._rows[low : low + PIECE_ROWS]
                for name, locate in self._locates.items():
                    self._offsets[name][low : low + len(piece)] = locate(piece)
                self._reached = low + len(piece)
