"""Where an epoch's rows lie, found ahead of the threads that gather them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from iobench.formats import Rows
from iobench.loading.stream.addresses import MAX_LISTED, Index, Locate
from iobench.loading.stream.views import base_from, offset_in

PIECE_ROWS = 1 << 16  # found by one call: half a millisecond


class OffsetPrefetch:
    """What each of `locates` says of an epoch's rows, found by a thread of its own, in turn.

    After each call of NumPy a thread waits for the interpreter's lock, and to find a group's rows takes
    up to four. Of rows that the thread has not come to yet, or that are not the epoch's, nothing is known.
    """

    def __init__(self, locates: Mapping[str, Locate], batches: Sequence[Rows]) -> None:
        first = batches[0] if batches and locates else slice(0)
        rest = (
            None if isinstance(first, slice) else base_from(first)
        )  # those that follow are parts of it, too
        self._rows = rest if rest is not None and len(rest) <= MAX_LISTED else np.empty(0, np.int64)
        self._locates = dict(locates)
        self._found = {name: np.empty(len(self._rows), np.int64) for name in locates}
        self._reached, self._stopping = 0, False
        self._thread = threading.Thread(target=self._work, name="iobench-located", daemon=True)
        if len(self._rows):
            self._thread.start()

    def of(self, name: str, rows: Index) -> Index | None:
        """What is said of these rows of a field, None where that is not known."""
        begin = offset_in(self._rows, rows) if name in self._found else None
        if begin is None or begin + len(rows) > self._reached:
            return None
        return self._found[name][begin : begin + len(rows)]

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        with suppress(Exception):  # which whoever gathers these rows meets as well
            for low in range(0, len(self._rows), PIECE_ROWS):
                if self._stopping:
                    return
                piece = self._rows[low : low + PIECE_ROWS]
                for name, locate in self._locates.items():
                    self._found[name][low : low + len(piece)] = locate(piece)
                self._reached = low + len(piece)
