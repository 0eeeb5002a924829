"""A .csv table of numbers, read by the child of `apart`: each column is a field of single numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench import formats
from iobench.base.errors import (
    CorruptArtifact,
    MissingDependency,
)
from iobench.base.text import reason, shortened
from iobench.formats import (
    Array,
    Convert,
    Field,
    Reader,
    Schema,
    same,
)

try:
    import pyarrow
    from pyarrow import csv
except ImportError as error:
    raise MissingDependency(
        "a .csv source needs pyarrow, which is not installed: pip install 'iobench[parquet]'"
    ) from error


class Csv:
    """What a format is to whoever reads: a schema, and readers that go through in order."""

    name = variant = "csv"

    def check(self, path: Path, schema: Schema) -> None:
        """Nothing: every cell is looked at when it is read."""

    def schema_of(self, path: Path, told: Sequence[Field] = ()) -> Schema:
        """The columns that the first line names, or those that follow `::`, and as many samples as lines.

        The whole file is read once, which tells how many there are, and that all of it is numbers.
        """
        path, chosen = formats.choice(path)
        columns, samples = dict[str, Any](), 0
        for piece in _pieces(path):
            columns = columns or {one.name: one.type for one in piece.schema}
            wanted = formats.choose(path, columns, chosen)
            for name in wanted:
                _check_column(path, name, piece.column(name), samples)
            samples += len(piece)
        if not samples:
            raise CorruptArtifact(f"{path}: it holds no line of numbers below the names of its columns")
        if all(_is_number(name) for name in columns):
            raise CorruptArtifact(
                f"{path}: its first line is numbers; it must name the columns, like x,y,label"
            )
        shapes = {name: ((samples,), np.dtype(columns[name].to_pandas_dtype())) for name in wanted}
        return formats.arrays_schema(path, shapes, columns)

    def open(self, path: Path, schema: Schema, random: bool = False) -> CsvReader:
        """Rows in order."""
        return CsvReader(path, schema)


class CsvReader(Reader):
    """Goes through the lines once: rows are asked for in order."""

    def __init__(self, path: Path, schema: Schema) -> None:
        super().__init__(schema)
        self._path, self._pieces = path, _pieces(path)
        self._left: dict[str, Array] = schema.empty(0)

    def sample(self, row: int, convert: Convert = same) -> dict[str, Any]:
        """Not to be had from lines."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the file."""
        self._pieces.close()  # type: ignore[attr-defined]

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        done = 0
        while done < stop - start:
            if not len(next(iter(self._left.values()))):
                self._left = self._next()
            some = {name: array[: stop - start - done] for name, array in self._left.items()}
            count = len(next(iter(some.values())))
            for name, target in out.items():
                target[done : done + count] = some[name]
            self._left = {name: array[count:] for name, array in self._left.items()}
            done += count

    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        raise NotImplementedError

    def _next(self) -> dict[str, Array]:
        for piece in self._pieces:
            named = {formats.field_name(name): piece.column(name) for name in piece.schema.names}
            return {
                field.name: named[field.name].to_numpy(zero_copy_only=False) for field in self.schema.fields
            }
        raise CorruptArtifact(f"{self._path}: it ends early; it was cut while it was read")


def _pieces(path: Path) -> Iterator[Any]:
    """The table in record batches of about 1 MiB; a column's type is what its first piece shows."""
    try:
        with csv.open_csv(path, convert_options=csv.ConvertOptions(strings_can_be_null=True)) as opened:
            yield from opened
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise CorruptArtifact(f"{path}: cannot be read as a table of numbers: {reason(error)}") from error


def _check_column(path: Path, name: str, column: Any, before: int) -> None:
    if column.null_count:
        row = before + column.is_null().to_pylist().index(True)
        raise CorruptArtifact(
            f"{path}: column {shortened(name)} has an empty cell in sample {row}; fill it, or leave it out"
        )
    if not (pyarrow.types.is_integer(column.type) or pyarrow.types.is_floating(column.type)) and not (
        pyarrow.types.is_boolean(column.type)
    ):
        raise CorruptArtifact(f"{path}: column {shortened(name)} is {column.type}, {formats.NO_NUMBER}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
