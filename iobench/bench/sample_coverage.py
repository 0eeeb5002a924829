"""Coverage of an epoch or a part of one: which samples were delivered and in which order, by their hashes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from iobench.dataset.sample_hashes import SampleHashes
from iobench.loading.shuffle_quality import shuffle_quality

Hashes = npt.NDArray[np.int64]
MOST_BATCHES = 100  # sampled evenly from the epoch to estimate its shuffle quality
PIECE = 1 << 20  # stored hashes at a time
SPARE = 16  # bits of the filter per delivered hash, so that it passes few others
MOST_BITS = 26


def kept_hashes(stored: SampleHashes, samples: int) -> Iterator[tuple[npt.NDArray[np.int64], Hashes]]:
    """Yield rows whose hashes were kept, and these, in pieces."""
    for low in range(0, samples, PIECE):
        rows = np.arange(low, min(low + PIECE, samples))
        rows = rows[stored.known(rows)]
        yield rows, stored.of(rows)


class SampleCoverage:
    """Comparison of delivered samples with stored rows.

    The stored hashes are read once, in pieces: memory depends on what was delivered, about 50 bytes a
    sample. Rows with equal content count as often as they were stored. Rows without a kept hash are
    unknown, and so are the samples that match no other. Each batch of `delivered` has a hash per sample.
    """

    def __init__(self, stored: SampleHashes, samples: int, delivered: Sequence[Hashes]) -> None:
        self._stored, self._samples, self._batches = stored, samples, delivered
        self._delivered = np.concatenate(delivered) if delivered else np.empty(0, np.int64)
        self._values, came = np.unique(self._delivered, return_counts=True)
        self._due = np.zeros(len(self._values), np.int64)
        self._row = np.zeros(len(self._values), np.int64)  # of rows with equal content the last
        known = self._find()
        matched = self._due > 0
        self.complete = known == samples
        self.verified = int(came[matched].sum())
        self.foreign = int(came[~matched].sum()) if self.complete else 0
        self.repeated = int((came - self._due)[matched].clip(min=0).sum())
        self.dropped = known - int(np.minimum(came, self._due).sum())

    def is_whole(self, part: bool) -> bool:
        """Return whether all samples were compared: of an epoch that was cut, if none of them is missing."""
        return self.complete and not (part and self.dropped)

    def _find(self) -> int:
        """Count how often each delivered hash was stored; return the number of rows with a kept hash."""
        mask = (1 << min(MOST_BITS, (SPARE * len(self._values)).bit_length())) - 1
        passed, known = np.zeros(mask + 1, bool), 0
        passed[self._values & mask] = True
        for rows, hashes in kept_hashes(self._stored, self._samples):
            known += len(rows)
            some = np.flatnonzero(passed[hashes & mask])
            some = some[np.argsort(hashes[some], kind="stable")]  # near each other in the cache
            place = np.searchsorted(self._values, hashes[some]).clip(max=len(self._values) - 1)
            hit = self._values[place] == hashes[some] if len(self._values) else place < 0
            np.add.at(self._due, place[hit], 1)
            self._row[place[hit]] = rows[some[hit]]
        return known

    @property
    def in_order(self) -> bool:
        """True if samples came in stored order, except dropped ones and repetitions at the end."""
        first = self._delivered[: self._samples]
        rows = np.arange(len(first))
        known = self._stored.known(rows)
        if np.array_equal(first[known], self._stored.of(rows[known])):
            return True
        return bool(np.all(np.diff(self._rows(first)) > 0))

    def shuffle_quality(self, block_rows: int) -> float | None:
        """Return the batches' shuffle quality (see loading.shuffle_quality); None if rows have duplicates."""
        if (self._due != 1).any():
            return None
        some = self._batches[:: max(1, len(self._batches) // MOST_BATCHES)]
        return shuffle_quality([self._rows(batch) for batch in some], block_rows, self._samples)

    def _rows(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        """Return the row of each delivered sample."""
        rows: npt.NDArray[np.int64] = self._row[np.searchsorted(self._values, hashes)]
        return rows
