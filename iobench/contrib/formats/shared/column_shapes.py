"""Schema of the columns of files that another program wrote, from their pieces."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from iobench.base.errors import CorruptArtifact
from iobench.base.finding import Finding
from iobench.contrib.formats.shared.arrow_columns import (
    columns_of,
    is_leaf,
    plain,
    sample_shape,
    varying_axes,
)
from iobench.contrib.formats.shared.byte_columns import encoded_notes, holds_bytes
from iobench.contrib.formats.shared.external import not_fixed
from iobench.formats import VARIES, Field, Schema, arrays_schema, own_extents, with_extents


class ColumnShapes:
    """Shapes and dtypes of the columns of files that another program wrote, from their pieces."""

    def __init__(self) -> None:
        self._shapes: dict[str, tuple[tuple[int, ...], str]] = {}
        self._elements: Counter[str] = Counter()
        self._rows: Counter[str] = Counter()

    def add(self, path: Path, name: str, column: pa.Array) -> None:
        """Add a piece of a column, in the file at `path`; CorruptArtifact if it does not fit the others."""
        shape, dtype = sample_shape(path, name, column, True, self._rows[name])
        self._rows[name] += len(column)
        self._elements[name] += _elements(plain(column))
        known, known_dtype = self._shapes.setdefault(name, (shape, dtype))
        if dtype != known_dtype or len(shape) != len(known):
            raise not_fixed(path, f"column {name}", f"{self._shapes[name]} and {(shape, dtype)}")
        pairs = zip(known, shape, strict=True)
        varying = varying_axes([size if size == other else VARIES for size, other in pairs])
        self._shapes[name] = (*[VARIES] * varying, *shape[varying:]), dtype

    def schema(self, path: Path, samples: int, fields: Sequence[Field], every: Sequence[str]) -> Schema:
        """Return the schema of these columns, or of those in `fields`, of a table with columns `every`."""
        if not samples:
            raise CorruptArtifact("it holds no rows", kind="empty", path=path)
        arrays = {name: ((samples, *shape), dtype) for name, (shape, dtype) in self._shapes.items()}
        inner = {
            name: math.prod(size for size in shape if size != VARIES)
            for name, (shape, _) in self._shapes.items()
        }
        totals = {name: count // max(1, inner[name]) for name, count in self._elements.items()}
        named = set(own_extents(fields).values()) - set(every)
        requested = [field for field in fields if field.name not in named]
        schema = arrays_schema(path, arrays, every, requested, totals)
        return replace(schema, fields=with_extents(schema.fields))


def _elements(column: pa.Array) -> int:
    """Return the number of elements in all lists of a column."""
    return len(column) if is_leaf(column.type) else _elements(column.flatten())


def column_notes(path: Path, schema: Schema, columns: pa.Schema) -> list[Finding]:
    """Return a note if fields of a table at `path` are columns of bytes."""
    names = columns_of(path, schema, columns.names)
    return encoded_notes([name for name, own in names.items() if holds_bytes(columns.field(own).type)])
