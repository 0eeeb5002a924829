"""Chunks of consecutive samples: samples in pieces of a fixed number, as they are written, and a reader."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from iobench.formats import (
    Array,
    Batch,
    BatchStream,
    Index,
    Reader,
    Rows,
    Schema,
    gathered,
    joined,
    map_values,
    shares,
)


def slabs(batches: Iterable[Batch], rows: int) -> Iterator[Batch]:
    """Yield the same samples in batches of `rows`, the last one smaller; views where possible."""
    stream = BatchStream(batches)
    while parts := list(stream.take(rows)):
        yield {name: joined([part[name] for part in parts]) for name in parts[0]}


def fill_arrays(arrays: Mapping[str, Any], rows: Mapping[str, int], batches: Iterable[Batch]) -> None:
    """Assign samples to a library's array per field, in order and in whole pieces of `rows` samples."""
    held, starts = {name: list[Array]() for name in arrays}, dict.fromkeys(arrays, 0)
    for batch in itertools.chain(batches, [None]):
        for name, parts in held.items():
            parts += [] if batch is None else [batch[name]]
            count = sum(map(len, parts))
            count -= 0 if batch is None else count % rows[name]
            if count:
                whole, start = joined(parts), starts[name]
                arrays[name][start : start + count] = whole[:count]
                held[name], starts[name] = [whole[count:].copy()], start + count


class ChunkedReader(Reader):
    """Base class of readers of chunks; a subclass reads rows of one chunk.

    `first`, int64, is the first row of each chunk, from 0 on, and then the number of samples.
    """

    def __init__(self, schema: Schema, first: Index) -> None:
        super().__init__(schema)
        self._first = first

    @abstractmethod
    def _rows(self, name: str, chunk: int, rows: slice | Index) -> Any:
        """Return `rows` of a field, counted from the chunk's first: an array, or a Ragged, maybe a view."""

    def batch(self, rows: Rows | Sequence[int]) -> Batch:
        """Return the rows in new arrays, ragged fields as `Ragged`; IndexError outside 0..len-1."""
        checked, _ = self._checked(rows)
        if not self.schema.ragged:
            return super().batch(checked)
        parts, slots = [self.schema.empty(0)], list[Any]()
        for chunk, local, at in shares(self._first, checked):
            own = {field.name: self._rows(field.name, chunk, local) for field in self.schema.fields}
            views = isinstance(local, slice)
            parts.append({name: map_values(np.array, part) for name, part in own.items()} if views else own)
            slots.append(at)
        return gathered(parts, slots)

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        self._read_rows(slice(start, stop), out)

    def _read_rows(self, rows: Rows, out: Mapping[str, Array]) -> None:
        for chunk, local, slots in shares(self._first, rows):
            for name, target in out.items():
                target[slots] = self._rows(name, chunk, local)
