"""Adapter of the sandbox for .jsonl files: one object of numbers and lists of numbers per line.

Lists that differ in length are a ragged field. Integers in lists, such as token ids, have the smallest of
the dtypes uint16, uint32 and int64 that holds all of them: JSON has no dtypes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from iobench import formats
from iobench.base.errors import CorruptArtifact, needing
from iobench.base.text import reason, shortened
from iobench.dataset.sources._in_order import InOrderReader
from iobench.formats import VARIES, Array, Field, Ragged, Schema

with needing("a .jsonl source", "parquet"):
    import pyarrow
    from pyarrow import json

NARROW = ("uint16", "uint32")
BLOCK_BYTES = 4 << 20  # parsed together


class JsonlAdapter(formats.Detectable):
    """The methods of a format that the sandbox uses; its readers read in order only."""

    name = variant = "jsonl"

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of the keys in the first lines, or of those named after `::`.

        The whole file is read once to count its lines and to check that all values are numbers.
        """
        path, chosen = formats.split_selection(path)
        keys, known, samples = dict[str, Key](), list[str](), 0
        for piece in _pieces(path):
            known = known or piece.schema.names
            names = formats.select_arrays(path, known, chosen)
            _check_numbers(path, piece.schema, names)
            for name in names:
                keys.setdefault(name, Key(path, name)).add(piece.column(name), samples)
            samples += piece.num_rows
        if not samples:
            raise CorruptArtifact("it holds no lines", kind="empty", path=path)
        shapes = {name: ((samples, *key.shape), key.dtype) for name, key in keys.items()}
        totals = {name: key.total for name, key in keys.items()}
        return formats.arrays_schema(path, shapes, known, totals=totals)

    def open(self, path: Path, schema: Schema, random: bool = False) -> InOrderReader:
        """Open a reader of rows in order."""
        return InOrderReader(path, schema, _batches(path, schema))


@dataclass
class Key:
    """Statistics of the values under one key so far: type, lengths, total."""

    path: Path
    name: str
    kind: Any = None  # Arrow's type of the values
    shortest: int | None = None  # of the lists; None for single numbers
    longest: int = 0
    total: int = 0
    low: int = 0
    high: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a sample."""
        if self.shortest is None:
            return ()
        return (self.longest if self.shortest == self.longest else VARIES,)

    @property
    def dtype(self) -> str:
        """NumPy dtype that holds all values."""
        dtype: str = np.dtype(self.kind.to_pandas_dtype()).name
        if self.shortest is None or dtype != "int64" or self.low < 0:
            return dtype
        return next((narrow for narrow in NARROW if self.high <= np.iinfo(narrow).max), dtype)

    def add(self, column: Any, before: int) -> None:
        """Add the values of the lines from `before` on; CorruptArtifact if they are no numbers."""
        flat = column
        if pyarrow.types.is_list(column.type):
            flat, lengths = column.flatten(), np.diff(column.offsets.to_numpy())
            self.shortest = int(min(lengths.min(), lengths[0] if self.shortest is None else self.shortest))
            self.longest = max(self.longest, int(lengths.max()))
            self.total += len(flat)
        if column.null_count or flat.null_count:
            raise self._missing(column.to_pylist(), before)
        self.kind = flat.type
        if pyarrow.types.is_integer(flat.type) and len(flat):
            values = flat.to_numpy()
            self.low, self.high = min(self.low, int(values.min())), max(self.high, int(values.max()))

    def _missing(self, values: list[Any], before: int) -> CorruptArtifact:
        lists = [one if isinstance(one, list) else [one] for one in values]
        row = next(i for i, one in enumerate(lists) if None in one)
        return CorruptArtifact(
            f"key {shortened(self.name)} has no number in sample {before + row:,}",
            kind="empty-cell",
            path=self.path,
            hint="give every line the same keys with numbers, or select other keys with '::'",
        )


def _check_numbers(path: Path, schema: Any, names: Sequence[str]) -> None:
    """Raise CorruptArtifact, with the selection of the others, if keys hold no numbers or lists of them."""
    numbers = [one.name for one in schema if _is_number(one.type)]
    if refused := {name: schema.field(name).type for name in names if name not in numbers}:
        raise formats.unstorable_columns(path, refused, numbers)


def _is_number(kind: Any) -> bool:
    """Return True for a number, a list of numbers, or a value that is missing, which has its own error."""
    types = pyarrow.types
    value = kind.value_type if types.is_list(kind) else kind
    known = types.is_integer(value) or types.is_floating(value) or types.is_boolean(value)
    return bool(known or types.is_null(kind))


def _pieces(path: Path) -> Iterator[Any]:
    """Yield the lines in record batches; the first one determines the keys and their types."""
    parsed = json.ParseOptions()
    try:
        for block in _blocks(path):
            options = json.ReadOptions(use_threads=False, block_size=len(block))
            for piece in json.read_json(pyarrow.py_buffer(block), options, parsed).to_batches():
                parsed = json.ParseOptions(piece.schema, unexpected_field_behavior="error")
                yield piece
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        problem = f"cannot be read as lines of JSON objects: {reason(error)}"
        raise CorruptArtifact(problem, kind="not-a-table", path=path) from error


def _blocks(path: Path) -> Iterator[bytes]:
    """Yield the file in blocks of whole lines; pyarrow's own streaming reader holds 32 blocks."""
    with open(path, "rb") as file:
        while block := file.read(BLOCK_BYTES):
            block += file.readline()
            if block.strip():
                yield block


def _batches(path: Path, schema: Schema) -> Iterator[dict[str, Any]]:
    """Yield all samples as arrays."""
    for piece in _pieces(path):
        names = formats.field_names(piece.schema.names)
        yield {field.name: _array(field, piece.column(names[field.name])) for field in schema.fields}


def _array(field: Field, column: Any) -> Any:
    """Return the values under a key."""
    flat = column.flatten() if field.shape else column
    values: Array = flat.to_numpy(zero_copy_only=False).astype(field.dtype, copy=False)
    if not field.is_ragged:
        return values.reshape(-1, *field.shape)
    offsets = column.offsets.to_numpy().astype(np.int64)
    return Ragged(values, offsets - offsets[0])
