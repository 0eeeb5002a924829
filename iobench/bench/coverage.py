"""Which samples an epoch gave, and in which order, told by their hashes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from iobench.loading.order import shuffledness

Hashes = npt.NDArray[np.int64]
MOST_BATCHES = 100  # that are looked at to see how random they are


class Coverage:
    """What batches hold of what was written: `written` one hash per row, `seen` one per sample that came.

    Takes some 40 bytes a sample. Rows that are alike count as often as they were written.
    """

    def __init__(self, written: Hashes, seen: Sequence[Hashes]) -> None:
        self._written, self._batches = written, seen
        self._seen = np.concatenate(seen) if seen else np.empty(0, np.int64)
        self._by_hash = np.argsort(written, kind="stable")
        values, due = np.unique(written, return_counts=True)
        place = np.searchsorted(values, self._seen).clip(max=len(values) - 1)
        known = values[place] == self._seen
        came = np.bincount(place[known], minlength=len(values))
        self._alike = len(values) < len(written)
        self.foreign = int((~known).sum())
        self.dropped = int((due - came).clip(min=0).sum())
        self.repeated = int((came - due).clip(min=0).sum())

    @property
    def in_order(self) -> bool:
        """Whether all came as they are stored, save those that came not at all or at the end once more."""
        kept = self._seen[: len(self._written)]
        if self.dropped:
            return bool(np.all(np.diff(self._rows(kept)) > 0))
        return bool(np.array_equal(kept, self._written))

    def shuffledness(self, block_rows: int) -> float | None:
        """How random the batches are, as iobench.loading.order says; None where rows cannot be told apart."""
        if self._alike:
            return None
        some = self._batches[:: max(1, len(self._batches) // MOST_BATCHES)]
        return shuffledness([self._rows(batch) for batch in some], block_rows, len(self._written))

    def _rows(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        """The row of each sample, the first of those that are alike."""
        return self._by_hash[np.searchsorted(self._written, hashes, sorter=self._by_hash)]
