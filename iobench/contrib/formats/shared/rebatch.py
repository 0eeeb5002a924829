"""Rebatch samples into pieces of a fixed number, for formats that write whole chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from iobench.formats import Array, Batch, Schema, joined, map_arrays


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
