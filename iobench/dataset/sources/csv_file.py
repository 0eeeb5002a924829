"""Adapter of the sandbox for .csv tables of numbers: each column is a field of scalars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from iobench import formats
from iobench.base.errors import CorruptArtifact, needing
from iobench.base.text import reason, shortened
from iobench.dataset.sources._in_order import InOrderReader
from iobench.formats import Array, Field, Schema

with needing("a .csv source", "parquet"):
    import pyarrow
    from pyarrow import csv


class CsvAdapter(formats.Detectable):
    """The methods of a format that the sandbox uses; its readers read in order only."""

    name = variant = "csv"

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of the columns in the first line, or of those named after `::`.

        The whole file is read once to count its lines and to check that all cells are numbers.
        """
        path, chosen = formats.split_selection(path)
        columns, samples = dict[str, Any](), 0
        for piece in _pieces(path):
            columns = columns or {one.name: one.type for one in piece.schema}
            refused = {name: kind for name, kind in columns.items() if not _is_stored(kind)}
            if refused and not chosen:
                raise formats.unstorable_columns(path, refused, [c for c in columns if c not in refused])
            names = formats.select_arrays(path, columns, chosen)
            for name in names:
                _check_column(path, name, piece.column(name), samples)
            samples += len(piece)
        if not samples:
            raise CorruptArtifact("no numbers below the line of column names", kind="empty", path=path)
        if all(_is_number(name) for name in columns):
            raise CorruptArtifact(
                "the first line contains numbers",
                kind="no-column-names",
                path=path,
                hint="add a first line that names the columns, like x,y,label",
            )
        shapes = {name: ((samples,), np.dtype(columns[name].to_pandas_dtype())) for name in names}
        return formats.arrays_schema(path, shapes, columns)

    def open(self, path: Path, schema: Schema, random: bool = False) -> InOrderReader:
        """Open a reader of rows in order."""
        return InOrderReader(path, schema, _batches(path, schema))


def _pieces(path: Path) -> Iterator[Any]:
    """Yield the table in record batches of about 1 MiB; the first one determines each column's type."""
    try:
        with csv.open_csv(path, convert_options=csv.ConvertOptions(strings_can_be_null=True)) as opened:
            yield from opened
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        problem = f"cannot be read as a table of numbers: {reason(error)}"
        raise CorruptArtifact(problem, kind="not-a-table", path=path) from error


def _batches(path: Path, schema: Schema) -> Iterator[dict[str, Array]]:
    for piece in _pieces(path):
        names = formats.field_names(piece.schema.names)
        columns = {field.name: piece.column(names[field.name]) for field in schema.fields}
        yield {name: column.to_numpy(zero_copy_only=False) for name, column in columns.items()}


def _check_column(path: Path, name: str, column: Any, before: int) -> None:
    if column.null_count:
        row = before + column.is_null().to_pylist().index(True)
        raise CorruptArtifact(
            f"column {shortened(name)} has an empty cell in sample {row}",
            kind="empty-cell",
            path=path,
            hint="fill it, or select other columns with '::'",
        )
    if not _is_stored(column.type):
        raise formats.unsupported_dtype(path, f"column {shortened(name)}", column.type)


def _is_stored(kind: Any) -> bool:
    types = pyarrow.types
    stored = (types.is_null, types.is_boolean, types.is_integer, types.is_floating)
    return any(is_one(kind) for is_one in stored)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
