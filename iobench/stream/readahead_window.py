"""The next rows of an epoch, in pieces that are worth a readahead request to the kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np

from iobench.formats import Index
from iobench.stream.addresses import AddressSpace

PIECE_BYTES = 32 << 20  # rows requested together
LONG_BYTES = 32 << 10  # random reads of this size are about as fast as sequential ones
MAX_READ_RATIO = 2  # maximum of bytes read per byte needed
SMALL_BYTES = 64 << 20  # a dataset up to this size is requested as a whole


class ReadaheadWindow:
    """The rows of an epoch in the order in which they are needed, batch by batch.

    Attributes
    ----------
    fields : list of str
        Fields worth requesting in the epoch's order: a piece of the epoch lies in long ranges, because rows
        are large or come in blocks, or the field lies between such fields. The others are read faster in
        stored order, and so is every field if the epoch is not larger than one piece.
    is_small : bool
        Requesting the whole dataset in stored order ends the epoch sooner than requesting rows.
    """

    def __init__(self, addresses: AddressSpace, batches: Sequence[Index]) -> None:
        self._addresses, self._batches = addresses, batches
        self._rows = max(1, PIECE_BYTES // sum(addresses.widths.values()))
        first, rows = next(self._pieces(0)), sum(map(len, batches))
        whole = addresses.samples * sum(addresses.widths.values())
        self.is_small = whole <= SMALL_BYTES and addresses.samples <= MAX_READ_RATIO * rows
        self.fields = self._long(first) if len(first) < rows and not self.is_small else []
        ends = accumulate(map(len, batches))
        self._ends = {int(b[-1]): end for b, end in zip(batches, ends, strict=True)} if self.fields else {}

    def begins(self, rows: Index) -> bool:
        """Return True if these rows are the epoch's first."""
        return bool(rows[0] == self._batches[0][0])

    def end_of(self, rows: Index) -> int | None:
        """Return the number of the epoch's rows up to the end of these; None if they are not in it."""
        return self._ends.get(int(rows[-1]))

    def pieces(self) -> Iterator[Index]:
        """Yield all rows after the first batch, in pieces of whole batches."""
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
        """Return the fields whose rows can be read in long ranges, and the fields that lie between them."""
        long = [name for name in self._addresses.widths if self._is_long(rows, name)]
        for name in self._addresses.widths.keys() - long if long else ():
            if len(self._addresses.pages(rows, [*long, name])[0]) <= len(
                self._addresses.pages(rows, long)[0]
            ):
                long.append(name)
        return long

    def _is_long(self, rows: Index, name: str) -> bool:
        low, high = self._addresses.pages(rows, [name])
        count, size = len(low), int((high - low).sum())
        return (
            size >= count * LONG_BYTES and size <= MAX_READ_RATIO * len(rows) * self._addresses.widths[name]
        )
