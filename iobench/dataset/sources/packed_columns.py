"""Tables whose scalar columns become matrices, one for each dtype."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from iobench.dataset.sources._source import Source
from iobench.formats import Batch, Field, Schema

TABLES = frozenset({"arrow", "csv", "jsonl", "lance", "parquet"})  # kinds of source that are tables
LABELS = frozenset({"class", "label", "labels", "target", "targets", "y"})


def packed_table(source: Source, kind: str) -> Source:
    """Return a table with its columns packed; any other source, or a table without such columns, itself."""
    return _PackedColumns(source) if kind.partition(":")[0] in TABLES and _packed(source.schema) else source


class _PackedColumns(Source):
    """A table whose scalar columns of one dtype are one field, `features`, in their order.

    If columns of several dtypes are packed, the dtype is part of the name, like `features_float32`. A column
    that is a label by its name, is alone in its dtype, or holds lists stays a field.
    """

    def __init__(self, table: Source) -> None:
        self._table = table
        self.packed = _packed(table.schema)
        self.name, self.decodes, self.notes = table.name, table.decodes, table.notes
        inside = {name for columns in self.packed.values() for name in columns}
        kept = [field for field in table.schema.fields if field.name not in inside]
        matrices = [
            Field(name, (len(columns),), table.schema.field(columns[0]).dtype)
            for name, columns in self.packed.items()
        ]
        self.schema = replace(table.schema, fields=(*matrices, *kept))
        packed = (f"{len(columns)} columns become {name}" for name, columns in self.packed.items())
        self.losses = (*table.losses, *packed)

    @property
    def description(self) -> dict[str, Any]:
        """Description of the table, with the columns of each matrix as `packed`."""
        return {**self._table.description, "packed": self.packed}

    def batches(self) -> Iterator[Batch]:
        """Yield the table's batches, the packed columns as matrices."""
        for batch in self._table.batches():
            matrices = {
                name: np.stack([batch.pop(column) for column in columns], axis=1)
                for name, columns in self.packed.items()
            }
            yield matrices | batch


def _packed(schema: Schema) -> dict[str, list[str]]:
    """Return the columns of each matrix by the matrix's name."""
    alike: dict[str, list[str]] = defaultdict(list)
    for field in schema.fields:
        original = schema.renamed.get(field.name, field.name)
        if not field.shape and original.casefold() not in LABELS:
            alike[field.dtype].append(field.name)
    several = {dtype: columns for dtype, columns in alike.items() if len(columns) > 1}
    taken = {field.name for field in schema.fields}
    return {
        _free(f"features_{dtype}" if len(several) > 1 else "features", taken): columns
        for dtype, columns in several.items()
    }


def _free(name: str, taken: set[str]) -> str:
    """Return the name, with a number if a column has it."""
    numbered = (f"{name}_{number}" for number in itertools.count(2))
    return next(one for one in itertools.chain([name], numbered) if one not in taken)
