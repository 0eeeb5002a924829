"""What an epoch wants next, in pieces that are worth asking the kernel for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from iobench.loading.stream.addresses import AddressSpace

PIECE_BYTES = 32 << 20  # of rows, asked for together
LONG_BYTES = 32 << 10  # reads of this size at random are about as fast as in order
MAX_READ_RATIO = 2  # times what is wanted may be read for it

Index = npt.NDArray[np.int64]


class ReadaheadWindow:
    """The rows of an epoch in the order in which they are wanted, batch by batch.

    `fields`: those of which a piece of the epoch lies in long byte_ranges, because rows are large or come
    in blocks, and those that lie among them. Others are sooner read as they are stored, and so is all of
    what is no more than a piece.
    """

    def __init__(self, places: AddressSpace, batches: Sequence[Index]) -> None:
        self._places, self._batches = places, batches
        self._rows = max(1, PIECE_BYTES // sum(places.widths.values()))
        first = next(self._pieces(0))
        self.fields = self._long(first) if len(first) < sum(map(len, batches)) else []
        ends = accumulate(map(len, batches))
        self._ends = {int(b[-1]): end for b, end in zip(batches, ends, strict=True)} if self.fields else {}

    def begins(self, rows: Index) -> bool:
        """Whether these rows are those that the epoch begins with."""
        return bool(rows[0] == self._batches[0][0])

    def end_of(self, rows: Index) -> int | None:
        """How many rows the epoch has wanted once it has had these batches; None if they are not its own."""
        return self._ends.get(int(rows[-1]))

    def pieces(self) -> Iterator[Index]:
        """All rows after the first batch, in whole batches, some at a time."""
        return self._pieces(1)

    def _pieces(self, start: int) -> Iterator[Index]:
        gathered: list[Index] = []
        room = self._rows
        for batch in self._batches[start:]:
            gathered.append(batch)
            room -= len(batch)
            if room <= 0:
                yield np.concatenate(gathered)
                gathered, room = [], self._rows
        if gathered:
            yield np.concatenate(gathered)

    def _long(self, rows: Index) -> list[str]:
        """The fields whose rows, or what lies between them as well, can be read in long byte_ranges."""
        long = [name for name in self._places.widths if self._is_long(rows, name)]
        for name in self._places.widths.keys() - long if long else ():
            if len(self._places.pages(rows, [*long, name])[0]) <= len(self._places.pages(rows, long)[0]):
                long.append(name)
        return long

    def _is_long(self, rows: Index, name: str) -> bool:
        low, high = self._places.pages(rows, [name])
        count, size = len(low), int((high - low).sum())
        return size >= count * LONG_BYTES and size <= MAX_READ_RATIO * len(rows) * self._places.widths[name]
