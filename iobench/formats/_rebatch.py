"""Samples in pieces of a fixed number: what formats that write whole chunks make of batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from iobench.formats._schema import Array, Batch, Schema


class Slab:
    """Collects arrays of samples and gives them out again in pieces of `rows`."""

    def __init__(self, rows: int) -> None:
        self._rows, self._held, self._count = rows, list[Array](), 0

    def add(self, array: Array) -> Iterator[Array]:
        """The pieces that an array completes; views of it where they are in it whole."""
        start = 0
        while self._count + len(array) - start >= self._rows:
            stop = start + self._rows - self._count
            yield _joined([*self._held, array[start:stop]])
            self._held, self._count, start = [], 0, stop
        if start < len(array):
            self._held.append(array[start:].copy())
            self._count += len(array) - start

    def rest(self) -> Iterator[Array]:
        """What is left, if anything: less than a piece."""
        if self._held:
            yield _joined(self._held)
        self._held, self._count = [], 0


def slabs(schema: Schema, batches: Iterable[Batch], rows: int) -> Iterator[Batch]:
    """The same samples in batches of `rows`, the last of the rest; views of the given where they fit."""
    fields = {field.name: Slab(rows) for field in schema.fields}
    for batch in batches:
        pieces = [fields[name].add(batch[name]) for name in fields]
        yield from (dict(zip(fields, some, strict=True)) for some in zip(*pieces, strict=True))
    rests = [slab.rest() for slab in fields.values()]
    yield from (dict(zip(fields, some, strict=True)) for some in zip(*rests, strict=True))


def _joined(parts: list[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
