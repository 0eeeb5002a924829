"""Rows of a dataset whose hashes were kept: all, or pieces that are spread evenly over it.

The rows are divided into pieces of one length; only the last may be shorter. Piece j of the list of hashes
is the golden section of all pieces further than piece j - 1 (modulo their number), which spreads the first k
evenly for every k (Knuth, TAOCP 3, section 6.4). So the length and number of pieces say which rows have a
hash and where in the list it is; the last piece of the data is the first in the list.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from iobench.formats import Index, Rows, Schema, index_of

GOLDEN = (math.sqrt(5) - 1) / 2
NEAR = 64  # steps tried on both sides of it
PIECE_BYTES = 1 << 20  # small, so that a stretch of rows contains some; reading one is longer than a seek


@dataclass(frozen=True)
class HashedRows:
    """The first `pieces` pieces of `piece_rows` rows, out of `samples` rows, in the order of the list."""

    samples: int
    piece_rows: int
    pieces: int

    @classmethod
    def all_of(cls, samples: int) -> HashedRows:
        """Return all rows, in stored order."""
        return cls(samples, samples, 1)

    @classmethod
    def part_of(cls, schema: Schema, size: int) -> HashedRows:
        """Return rows of about `size` bytes, spread over the dataset; all if it is not larger."""
        if schema.logical_bytes <= size:
            return cls.all_of(schema.samples)
        rows = min(schema.samples, max(1, PIECE_BYTES // schema.sample_bytes))
        return cls(schema.samples, rows, max(1, size // (rows * schema.sample_bytes)))

    @property
    def count(self) -> int:
        """Number of rows."""
        return self._last_rows + (self.pieces - 1) * self.piece_rows

    @property
    def whole(self) -> bool:
        """True if these are all rows."""
        return self.count == self.samples

    def slices(self, rows: int) -> Iterator[slice]:
        """Yield slices of at most that many rows, in the order of the list."""
        for number in range(self.pieces):
            piece = (self._all - 1 + number * self._step) % self._all
            stop = min((piece + 1) * self.piece_rows, self.samples)
            for low in range(piece * self.piece_rows, stop, rows):
                yield slice(low, min(low + rows, stop))

    def known(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return for each row whether it is one of these."""
        known: npt.NDArray[np.bool_] = self._number(index_of(rows)) < self.pieces
        return known

    def positions(self, rows: Rows) -> Rows:
        """Return the position in the list of each row, which must be known."""
        if self._all == 1:
            return rows
        rows = index_of(rows)
        number = self._number(rows)
        before = np.where(number == 0, 0, self._last_rows + (number - 1) * self.piece_rows)
        return before + rows % self.piece_rows

    @property
    def _all(self) -> int:
        """Number of pieces of all rows."""
        return -(-self.samples // self.piece_rows)

    @property
    def _last_rows(self) -> int:
        """Rows of the last piece."""
        return self.samples - (self._all - 1) * self.piece_rows

    @property
    def _step(self) -> int:
        """Pieces from one in the list to the next."""
        return _golden_step(self._all)

    def _number(self, rows: Index) -> Index:
        """Return the number in the list of the piece of each row."""
        return (rows // self.piece_rows + 1) * pow(self._step, -1, self._all) % self._all


@lru_cache
def _golden_step(count: int) -> int:
    """Return the step near the golden section that spreads pieces best; manifests depend on it."""
    middle = round(GOLDEN * count)
    near = range(max(1, middle - NEAR), min(count, middle + NEAR) + 1)
    return min(near, key=lambda step: (_largest_quotient(step, count), step))


def _largest_quotient(step: int, count: int) -> float:
    """Return the largest partial quotient of count / step; infinity if they share a factor."""
    largest = 0
    while step:
        largest = max(largest, count // step)
        count, step = step, count % step
    return largest if count == 1 else math.inf
