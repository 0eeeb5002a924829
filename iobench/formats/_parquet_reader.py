"""Reading Parquet by row groups, the last decoded of which are kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from iobench.base.errors import (
    CorruptArtifact,
    corrupt,
)
from iobench.base.text import reason
from iobench.formats._arrow_columns import DAMAGE, arrays, check_type, sample_shape
from iobench.formats._chunked_reader import ChunkedReader, Index
from iobench.formats._external import fields_by_name, not_fixed, schema_of_arrays
from iobench.formats._file_kind import regular
from iobench.formats._reader import TimingWrapper, identity
from iobench.formats._schema import Array, Batch, Field, Schema

KEPT = 2  # decoded row groups: that which is read, and the next in order


def opened(file: Path) -> pq.ParquetFile:
    """A file, its footer read; CorruptArtifact where it is none."""
    try:
        return pq.ParquetFile(regular(file), memory_map=True)
    except DAMAGE as error:
        raise corrupt(file, "a Parquet file", reason(error)) from error


def infer_schema_of(files: Sequence[Path], fields: Sequence[Field]) -> Schema:
    """The samples and fields of files that others wrote."""
    wanted = {field.name for field in fields}
    shapes: dict[str, tuple[tuple[int, ...], str]] = {}
    samples = 0
    for file in files:
        for batch, names in _groups(file, wanted):
            samples += batch.num_rows
            for name in names:
                for chunk in batch.column(name).chunks:
                    found = sample_shape(file, name, chunk)
                    if shapes.setdefault(name, found) != found:
                        raise not_fixed(file, f"column {name}", f"{shapes[name]} and {found}")
    if not samples:
        raise CorruptArtifact(f"{files[0]}: it holds no rows")
    return schema_of_arrays(files[0], {n: ((samples, *s), d) for n, (s, d) in shapes.items()}, fields)


def _groups(file: Path, wanted: set[str]) -> Iterator[tuple[pa.Table, list[str]]]:
    """The row groups of a file, in those columns that are wanted, or in all."""
    parquet = opened(file)
    names = fields_by_name(file, parquet.schema_arrow.names)
    chosen = [name for field, name in names.items() if not wanted or field in wanted]
    for number in range(parquet.num_row_groups):
        try:
            yield parquet.read_row_group(number, chosen), chosen
        except DAMAGE as error:
            raise corrupt(file, f"a readable row group {number}", reason(error)) from error


class ParquetReader(ChunkedReader):
    """Decodes whole row groups, one thread at a time, and copies rows out of them."""

    def __init__(self, files: Sequence[Path], schema: Schema) -> None:
        self._parquets: list[pq.ParquetFile] | None = [opened(file) for file in files]
        self._files = list(files)
        self._groups: list[tuple[int, int]] = []  # file and row group of each chunk
        first = [0]
        for number, parquet in enumerate(self._parquets):
            for group in range(parquet.num_row_groups):
                if rows := parquet.metadata.row_group(group).num_rows:
                    self._groups.append((number, group))
                    first.append(first[-1] + rows)
        if first[-1] != schema.samples:
            raise corrupt(files[0], f"{schema.samples} samples", first[-1])
        super().__init__(schema, np.array(first[:-1], np.int64))
        self._names = [_names(file, p, schema) for file, p in zip(files, self._parquets, strict=True)]
        self._kept: dict[int, Batch] = {}
        self._lock = threading.Lock()  # a ParquetFile is for one thread at a time
        self._timed: TimingWrapper = identity

    def time_decoding(self, timed: TimingWrapper) -> None:
        """Have `timed` wrap the decoding of a row group."""
        self._timed = timed

    def close(self) -> None:
        """Close the files, and forget what was decoded."""
        for parquet in self._parquets or ():
            parquet.close()
        self._parquets, self._kept = None, {}

    def _check_open(self) -> None:
        if self._parquets is None:
            raise ValueError("this reader is closed")

    def _copy(self, name: str, chunk: int, rows: slice | Index, target: Array, slots: slice | Index) -> None:
        target[slots] = self._group(chunk)[name][rows]

    def _group(self, chunk: int) -> Batch:
        """A row group, decoded now or lately."""
        with self._lock:
            found = self._kept.pop(chunk, None)
            if found is None:
                found = self._timed(self._decoded)(chunk)
                while len(self._kept) >= KEPT:
                    del self._kept[next(iter(self._kept))]
            self._kept[chunk] = found  # the newest last
            return found

    def _decoded(self, chunk: int) -> Batch:
        self._check_open()
        assert self._parquets is not None
        number, group = self._groups[chunk]
        names = self._names[number]
        ends = [*self._first[1:].tolist(), len(self)]
        rows = ends[chunk] - int(self._first[chunk])
        try:
            table = self._parquets[number].read_row_group(group, list(names.values()))
            found = arrays(self._files[number], self.schema, table, names)
        except DAMAGE as error:
            if isinstance(error, CorruptArtifact):
                raise
            raise corrupt(self._files[number], f"row group {group}", reason(error)) from error
        if any(len(array) != rows for array in found.values()):
            raise corrupt(self._files[number], f"{rows} rows in row group {group}", table.num_rows)
        return found


def _names(file: Path, parquet: pq.ParquetFile, schema: Schema) -> dict[str, str]:
    """The name of each field's column; CorruptArtifact where types are others, as far as they say."""
    try:
        columns: Any = parquet.schema_arrow
    except DAMAGE as error:
        raise corrupt(file, "Parquet's schema", reason(error)) from error
    names = fields_by_name(file, columns.names)
    for field in schema.fields:
        if field.name not in names:
            raise corrupt(file, f"a column {field.name}", ", ".join(names))
        check_type(file, field, columns.field(names[field.name]).type)
    return {field.name: names[field.name] for field in schema.fields}
