"""Groups of batches that are read together, into one slot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from iobench.formats import Rows
from iobench.loading.order import Batches, row_count
from iobench.stream.views import joined_view


@dataclass(frozen=True)
class BatchGroup:
    """Batches `first` to `last` - 1 of an epoch, whose rows are drawn by the thread that reads them."""

    batches: Sequence[Rows]
    first: int
    last: int

    def rows(self) -> tuple[Rows, list[int]]:
        """Return the rows of all batches, and the samples of each."""
        if isinstance(self.batches, Batches) and self.batches.are_adjacent:
            return self.batches.joined(self.first, self.last)
        group = [self.batches[number] for number in range(self.first, self.last)]
        return joined(group), [row_count(rows) for rows in group]


def grouped(batches: Sequence[Rows], sizes: Iterator[int]) -> Iterator[BatchGroup]:
    """Yield the batches in groups of these sizes."""
    first = 0
    while first < len(batches):
        last = min(first + next(sizes), len(batches))
        yield BatchGroup(batches, first, last)
        first = last


def joined(group: list[Rows]) -> Rows:
    """Return the rows of batches in one piece, without a copy if they are adjacent views."""
    first, last = group[0], group[-1]
    if isinstance(first, slice) and isinstance(last, slice):
        return slice(first.start, last.stop)
    if len(group) == 1:
        return first
    parts = [rows for rows in group if not isinstance(rows, slice)]
    whole = joined_view(parts)
    return np.concatenate(parts) if whole is None else whole
