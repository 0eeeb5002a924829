"""Coverage of one epoch: which samples were delivered and in which order, identified by hash."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from iobench.loading.order import shuffle_quality

Hashes = npt.NDArray[np.int64]
MOST_BATCHES = 100  # sampled evenly from the epoch to estimate its shuffle quality


class SampleCoverage:
    """Comparison of delivered samples with stored rows.

    Needs about 40 bytes per sample. Rows with equal content count as often as they were stored.

    Parameters
    ----------
    stored : int64 array
        One hash per stored row, in stored order.
    delivered : sequence of int64 arrays
        One hash per delivered sample, one array per batch.
    """

    def __init__(self, stored: Hashes, delivered: Sequence[Hashes]) -> None:
        self._stored, self._batches = stored, delivered
        self._delivered = np.concatenate(delivered) if delivered else np.empty(0, np.int64)
        self._by_hash = np.argsort(stored, kind="stable")
        values, due = np.unique(stored, return_counts=True)
        position = np.searchsorted(values, self._delivered).clip(max=len(values) - 1)
        known = values[position] == self._delivered
        came = np.bincount(position[known], minlength=len(values))
        self._has_duplicates = len(values) < len(stored)
        self.foreign = int((~known).sum())
        self.dropped = int((due - came).clip(min=0).sum())
        self.repeated = int((came - due).clip(min=0).sum())

    @property
    def in_order(self) -> bool:
        """True if samples came in stored order, except dropped ones and repetitions at the end."""
        first = self._delivered[: len(self._stored)]
        if self.dropped:
            return bool(np.all(np.diff(self._rows(first)) > 0))
        return bool(np.array_equal(first, self._stored))

    def shuffle_quality(self, block_rows: int) -> float | None:
        """Return the batches' shuffle quality (see iobench.loading.order); None if rows have duplicates."""
        if self._has_duplicates:
            return None
        some = self._batches[:: max(1, len(self._batches) // MOST_BATCHES)]
        return shuffle_quality([self._rows(batch) for batch in some], block_rows, len(self._stored))

    def _rows(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        """Return the row of each sample; of rows with equal content the first."""
        return self._by_hash[np.searchsorted(self._stored, hashes, sorter=self._by_hash)]
