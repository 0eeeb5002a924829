"""Chunks of consecutive samples: samples in pieces of a fixed number, as they are written, and a reader."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from iobench.formats import Array, Batch, Index, Reader, Rows, Schema, joined, map_arrays, map_values


class Slab:
    """Collects arrays of samples and returns them in pieces of `rows`."""

    def __init__(self, rows: int) -> None:
        self._rows, self._held, self._count = rows, list[Array](), 0

    def add(self, array: Array) -> Iterator[Array]:
        """Yield the pieces that an array completes; views of it where a piece lies within it."""
        start = 0
        while self._count + len(array) - start >= self._rows:
            stop = start + self._rows - self._count
            yield joined([*self._held, array[start:stop]])
            self._held, self._count, start = [], 0, stop
        if start < len(array):
            self._held.append(map_arrays(np.array, array[start:]))
            self._count += len(array) - start

    def rest(self) -> Iterator[Array]:
        """Yield the incomplete last piece, if any."""
        if self._held:
            yield joined(self._held)
        self._held, self._count = [], 0


def slabs(schema: Schema, batches: Iterable[Batch], rows: int) -> Iterator[Batch]:
    """Yield the same samples in batches of `rows`, the last one smaller; views where possible."""
    fields = {field.name: Slab(rows) for field in schema.fields}
    for batch in batches:
        pieces = [fields[name].add(batch[name]) for name in fields]
        yield from (dict(zip(fields, some, strict=True)) for some in zip(*pieces, strict=True))
    rests = [slab.rest() for slab in fields.values()]
    yield from (dict(zip(fields, some, strict=True)) for some in zip(*rests, strict=True))


def fill_arrays(arrays: Mapping[str, Any], rows: Mapping[str, int], batches: Iterable[Batch]) -> None:
    """Assign samples to a library's array per field, in order and in whole pieces of `rows` samples."""
    fields, starts = {name: Slab(rows[name]) for name in arrays}, dict.fromkeys(arrays, 0)

    def put(name: str, pieces: Iterable[Array]) -> None:
        for piece in pieces:
            stop = starts[name] + len(piece)
            arrays[name][starts[name] : stop] = piece
            starts[name] = stop

    for batch in batches:
        for name, slab in fields.items():
            put(name, slab.add(batch[name]))
    for name, slab in fields.items():
        put(name, slab.rest())


class ChunkedReader(Reader):
    """Base class of readers of chunks; a subclass reads rows of one chunk.

    `first`, int64, is the first row of each chunk, from 0 on; each chunk ends where the next begins.
    """

    def __init__(self, schema: Schema, first: Index) -> None:
        super().__init__(schema)
        self._first = first

    @abstractmethod
    def _rows(self, name: str, chunk: int, rows: slice | Index) -> Any:
        """Return `rows` of a field, counted from the chunk's first: an array, or a Ragged, maybe a view."""

    def batch(self, rows: Rows | Sequence[int]) -> Batch:
        """Return the rows in new arrays, ragged fields as `Ragged`; IndexError outside 0..len-1."""
        checked, count = self._checked(rows)
        ragged = self.schema.ragged
        if not ragged:
            return super().batch(checked)
        batch: dict[str, Any] = self.schema.fixed.empty(count)
        none: dict[str, Any] = self.schema.empty(0)
        parts = {field.name: [none[field.name]] for field in ragged}
        came = [np.empty(0, np.int64)]
        for chunk, local, slots in self._pieces(checked):
            for name, target in batch.items():
                target[slots] = self._rows(name, chunk, local)
            for name in parts:
                part = self._rows(name, chunk, local)
                parts[name].append(map_values(np.array, part) if isinstance(local, slice) else part)
            came.append(np.arange(count)[slots])
        for name, some in parts.items():
            whole = joined(some)
            batch[name] = whole if isinstance(checked, slice) else whole[np.argsort(np.concatenate(came))]
        return {field.name: batch[field.name] for field in self.schema.fields}

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        self._read_rows(slice(start, stop), out)

    def _read_rows(self, rows: Rows, out: Mapping[str, Array]) -> None:
        for chunk, local, slots in self._pieces(rows):
            for name, target in out.items():
                target[slots] = self._rows(name, chunk, local)

    def _pieces(self, rows: Rows) -> Iterator[tuple[int, slice | Index, slice | Index]]:
        """Yield each chunk that holds some of the rows, these rows from its first on, and their slots."""
        if isinstance(rows, slice):
            yield from self._slices(rows.start, rows.stop)
            return
        chunks = np.searchsorted(self._first, rows, side="right") - 1
        order = np.argsort(chunks, kind="stable")
        edges = np.flatnonzero(np.diff(chunks[order], prepend=-1, append=-1)).tolist()
        for low, high in itertools.pairwise(edges):
            slots = order[low:high]
            chunk = int(chunks[slots[0]])
            yield chunk, rows[slots] - self._first[chunk], slots

    def _slices(self, start: int, stop: int) -> Iterator[tuple[int, slice, slice]]:
        low, chunk = start, int(np.searchsorted(self._first, start, side="right")) - 1
        while low < stop:
            first = int(self._first[chunk])
            end = int(self._first[chunk + 1]) if chunk + 1 < len(self._first) else len(self)
            high = min(end, stop)
            yield chunk, slice(low - first, high - first), slice(low - start, high - start)
            low, chunk = end, chunk + 1
