"""Reader of Arrow IPC files and streams through memory maps; opening checks every record batch."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from iobench.base.errors import CorruptArtifact, corrupt, expecting
from iobench.base.files import regular
from iobench.base.text import listed
from iobench.contrib.formats.shared.arrow_columns import (
    DAMAGE,
    Table,
    arrays,
    columns_of,
    holds_extents,
    leaf_of,
    rows_of,
    sample_shape,
    selected,
    values,
)
from iobench.contrib.formats.shared.chunks import ChunkedReader
from iobench.contrib.formats.shared.table_format import ARROW
from iobench.formats import (
    Array,
    Batch,
    Chunked,
    Field,
    Index,
    Placement,
    Rows,
    Schema,
    fields_by_name,
    unclosed,
)


class MappedBatches:
    """The record batches of a memory-mapped file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        with expecting(file, "an Arrow IPC file", DAMAGE):
            with regular(file).open("rb") as opened:
                mapped = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
            # without it, readahead around the header of each record batch would read the whole file
            mapped.madvise(mmap.MADV_RANDOM)
            whole = pa.py_buffer(mapped)
            self.base, self.size = whole.address, whole.size
            self.batches = list(self._checked(whole))
            self.names: list[str] = self.schema.names  # ValueError unless they are UTF-8
            mapped.madvise(mmap.MADV_NORMAL)

    def _checked(self, whole: pa.Buffer) -> Iterator[pa.RecordBatch]:
        """Yield each non-empty record batch after its buffers were validated."""
        source = pa.BufferReader(whole)
        if whole.slice(0, len(ARROW)).to_pybytes() == ARROW:
            opened = pa.ipc.open_file(source)
            self.schema = opened.schema
            batches = (opened.get_batch(number) for number in range(opened.num_record_batches))
        else:
            stream = pa.ipc.open_stream(source)
            self.schema = stream.schema
            batches = iter(stream)
        for batch in batches:
            batch.validate()
            if batch.num_rows:
                yield batch

    def table(self) -> Table:
        """Return the table of all record batches."""

        def pieces(names: Sequence[str]) -> Iterator[tuple[str, pa.Array]]:
            return ((name, batch.column(name)) for batch in self.batches for name in names)

        return Table(self.file, self.schema, sum(batch.num_rows for batch in self.batches), pieces)

    def offset_of(self, column: Array) -> int:
        """Return the byte offset of a column's values; CorruptArtifact (``compressed``) outside the file."""
        address = column.__array_interface__["data"][0]
        if column.nbytes and not self.base <= address <= self.base + self.size - column.nbytes:
            problem, expected = "its columns cannot be mapped", "uncompressed record batches"
            hint = "write the file without compression"
            raise CorruptArtifact(
                problem, "compressed", self.file, expected=expected, found="compressed ones", hint=hint
            )
        return int(address - self.base)


def check_lists(files: Sequence[Path], schema: Schema) -> None:
    """Raise CorruptArtifact if a variable list has another length than its field."""
    for opened in map(MappedBatches, files):
        names = fields_by_name(opened.file, opened.names)
        first = 0
        for batch in opened.batches:
            for field in schema.fields:
                if field.name in names:
                    name = names[field.name]
                    with expecting(opened.file, f"lists in column {name}", DAMAGE):
                        column, ragged = batch.column(name), field.is_ragged
                        shape, _ = sample_shape(opened.file, name, column, ragged, first)
                    if not _fits(field, shape):
                        raise corrupt(opened.file, f"{name} of shape {field.shape}", shape)
            first += batch.num_rows


def _fits(field: Field, shape: tuple[int, ...]) -> bool:
    """Return whether lists of this shape hold a field, whose axes that vary may be stored as one."""
    if not field.is_ragged:
        return shape == field.shape
    axes = len(shape) - len(field.inner)
    return axes in (1, field.varying) and shape[axes:] == field.inner


class ArrowReader(ChunkedReader):
    """Copies rows out of the mapped record batches; `native` uses slice and take of an Arrow table."""

    def __init__(self, files: Sequence[Path], schema: Schema) -> None:
        opened = [MappedBatches(file) for file in files]
        batches = [(number, batch) for number, one in enumerate(opened) for batch in one.batches]
        first = np.cumsum([0, *(batch.num_rows for _, batch in batches)], dtype=np.int64)
        if first[-1] != schema.samples:
            raise corrupt(files[0], f"{schema.samples} samples", int(first[-1]))
        super().__init__(schema, first)
        self._files, self._numbers = tuple(files), np.array([number for number, _ in batches], np.int64)
        own = opened[0].schema
        self._names = columns_of(files[0], schema, own.names)
        for other in opened[1:]:
            if (other.schema.types, other.schema.names) != (own.types, own.names):
                raise corrupt(other.file, f"the columns of {files[0].name}", listed(other.schema.names))
        self._chunks: dict[str, list[Any]] | None = {f.name: [] for f in schema.fields}
        self._offsets: dict[str, list[int]] = {}
        for number, batch in batches:
            self._add(opened[number], batch)
        # of the checked columns alone: Arrow's `take` does not survive damage in others
        self._table = pa.Table.from_batches([selected(one, self._names.values()) for _, one in batches])

    def _add(self, opened: MappedBatches, batch: pa.RecordBatch) -> None:
        """Add a record batch: fixed bools as bits, extents as new arrays, others as views of the map."""
        assert self._chunks is not None
        for field in self.schema.fields:
            column = batch.column(self._names[field.name])
            with expecting(opened.file, f"a column {field.name}", DAMAGE):
                if field.dtype == "bool" and not field.is_ragged:
                    self._chunks[field.name].append(leaf_of(opened.file, field, column))
                    continue
                rows = rows_of(opened.file, field, column)
            self._chunks[field.name].append(rows)
            if field.is_ragged and field.dtype != "bool":
                opened.offset_of(rows.values)
            elif not field.is_ragged and not holds_extents(field, column.type):
                self._offsets.setdefault(field.name, []).append(opened.offset_of(rows))

    def placement(self) -> Mapping[str, Placement]:
        """Return the location of each field in the record batches' buffers, without bools, which are bits."""
        return {
            name: Chunked(
                self._files,
                self._first[:-1],
                self._numbers,
                np.array(offsets, np.int64),
                self.schema.field(name).sample_bytes,
            )
            for name, offsets in self._offsets.items()
        }

    def native(self, rows: Rows) -> Batch:
        """Return views of the map for a slice, and for indices the arrays that Arrow's `take` returns."""
        table, (checked, count) = unclosed(self._table), self._checked(rows)
        some = (
            table.slice(checked.start, count) if isinstance(checked, slice) else table.take(pa.array(checked))
        )
        return arrays(self._files[0], self.schema, some, self._names)

    def close(self) -> None:
        """Release the maps; the memory is unmapped with its last view."""
        self._chunks, self._table = None, None

    def _rows(self, name: str, chunk: int, rows: slice | Index) -> Any:
        stored = unclosed(self._chunks)[name][chunk]
        if not isinstance(stored, pa.Array):
            return stored[rows]
        field = self.schema.field(name)  # of bits
        size = field.elements
        if isinstance(rows, slice):
            parts = [stored.slice(rows.start * size, (rows.stop - rows.start) * size)]
        else:
            parts = [stored.slice(row * size, size) for row in rows.tolist()]
        return np.concatenate([values(part) for part in parts]).reshape(-1, *field.shape)
