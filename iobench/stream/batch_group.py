"""Groups of batches that are read together, into one slot, by all threads that have time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeAlias

import numpy as np

from iobench.formats import Batch, Rows, index_of
from iobench.loading.order import Batches, row_count
from iobench.stream.transfer import Tensors

Filled: TypeAlias = (
    "tuple[list[Tensors], Exception | None]"  # batches, and the error that kept the next from being made
)


class BatchGroup:
    """Consecutive batches of an epoch, read piece by piece; each piece is claimed by one thread.

    Attributes
    ----------
    rows : slice or int64 array
        Rows of all batches.
    sizes : list of int
        Samples of each batch.
    slot : dict of str to array
        Memory of all batches, from `divide` on; the thread that finishes the group takes it away.
    error : BaseException or None
        An error while a piece was read.
    result : SimpleQueue
        Receives the batches, or an error, when the group is finished.
    """

    def __init__(self, rows: Rows, sizes: list[int]) -> None:
        self.rows, self.sizes = rows, sizes
        self.slot: Batch = {}
        self.error: BaseException | None = None
        self.result: SimpleQueue[Filled | BaseException] = SimpleQueue()
        # queues without locks, so that Ctrl-C at any moment leaves none held
        self._unclaimed: deque[slice] = deque([slice(0, sum(sizes))])
        self._unread = [0]  # as many numbers from 0 on as there are pieces

    def claim(self) -> slice | None:
        """Return a piece, as a slice of `rows`, that no other thread reads; None if there is none.

        The first piece is the whole group, without memory yet: see `divide`.
        """
        with suppress(IndexError):
            return self._unclaimed.popleft()
        return None

    @property
    def unclaimed(self) -> int:
        """Number of pieces that no thread has claimed yet."""
        return len(self._unclaimed)

    def divide(self, slot: Batch, piece_rows: int) -> slice:
        """Set the memory, and divide the group evenly; the caller reads the piece that is returned."""
        self.slot, count = slot, sum(self.sizes)
        pieces = -(-count // piece_rows) or 1
        first, *others = (
            slice(count * number // pieces, count * (number + 1) // pieces) for number in range(pieces)
        )
        self._unread = list(range(pieces))
        self._unclaimed.extend(others)
        return first

    def part(self, piece: slice) -> tuple[Rows, Batch]:
        """Return the rows of a piece and their memory."""
        rows, out = self.rows, {name: array[piece] for name, array in self.slot.items()}
        if isinstance(rows, slice):
            return slice(rows.start + piece.start, rows.start + piece.stop), out
        return rows[piece], out

    def is_last(self) -> bool:
        """Count a piece as read; return True if it was the last one. Called once for each piece."""
        return self._unread.pop() == 0


def grouped(batches: Sequence[Rows], sizes: Iterator[int]) -> Iterator[BatchGroup]:
    """Yield the batches in groups of these sizes; their rows are drawn as far as they are needed."""
    first = 0
    while first < len(batches):
        last = min(first + next(sizes), len(batches))
        yield BatchGroup(*_joined(batches, first, last))
        first = last


def _joined(batches: Sequence[Rows], first: int, last: int) -> tuple[Rows, list[int]]:
    """Return the rows of the batches `first` to `last` - 1 in one piece, and the samples of each."""
    if isinstance(batches, Batches) and batches.are_adjacent:
        return batches.joined(first, last)
    group = [batches[number] for number in range(first, last)]
    return joined(group), [row_count(rows) for rows in group]


def joined(group: list[Rows]) -> Rows:
    """Return the rows of batches in one piece."""
    first, last = group[0], group[-1]
    if isinstance(first, slice) and isinstance(last, slice):
        whole = slice(first.start, last.stop)
        if row_count(whole) == sum(map(row_count, group)):
            return whole
    return np.concatenate([index_of(rows) for rows in group])
