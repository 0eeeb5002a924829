"""Samples in pieces of a fixed number: what formats that write whole chunks make of batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from iobench.formats._schema import Batch, Schema


def slabs(schema: Schema, batches: Iterable[Batch], rows: int) -> Iterator[Batch]:
    """The same samples in batches of `rows`, the last of the rest; views of the given where they fit."""
    held: list[Batch] = []
    count = 0
    for batch in batches:
        size, start = len(next(iter(batch.values()))), 0
        while count + size - start >= rows:
            stop = start + rows - count
            yield _joined(schema, [*held, _part(batch, start, stop)])
            held, count, start = [], 0, stop
        if start < size:
            held.append({name: array.copy() for name, array in _part(batch, start, size).items()})
            count += size - start
    if held:
        yield _joined(schema, held)


def _part(batch: Batch, start: int, stop: int) -> Batch:
    return {name: array[start:stop] for name, array in batch.items()}


def _joined(schema: Schema, parts: list[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    return {field.name: np.concatenate([part[field.name] for part in parts]) for field in schema.fields}
