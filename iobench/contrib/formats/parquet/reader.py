"""Reader of Parquet by row groups, with a small cache of decoded row groups."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from iobench.base.errors import corrupt, expecting
from iobench.base.files import regular
from iobench.contrib.formats.shared.arrow_columns import (
    DAMAGE,
    Table,
    arrays,
    checked_columns,
    is_leaf,
    plain_type,
)
from iobench.contrib.formats.shared.chunks import ChunkedReader
from iobench.formats import Index, Schema, unclosed

CACHED = 2  # decoded row groups: the current one and the next in order


def opened(file: Path) -> pq.ParquetFile:
    """Open a file and read its footer; CorruptArtifact if it is not a Parquet file."""
    with expecting(file, "a Parquet file", DAMAGE):
        parquet = pq.ParquetFile(regular(file), memory_map=True)
        assert parquet.schema_arrow is not None  # reading it raises on damaged metadata
    return parquet


def table_of(file: Path) -> Table:
    """Open a file that another program wrote."""
    parquet = opened(file)
    return Table(file, parquet.schema_arrow, parquet.metadata.num_rows, partial(_chunks, file, parquet))


def _chunks(file: Path, parquet: pq.ParquetFile, names: Sequence[str]) -> Iterator[tuple[str, pa.Array]]:
    """Yield columns of a file in chunks: lists, bytes, and scalars that may be null; others without rows."""
    decoded = []
    for name in names:
        kind = parquet.schema_arrow.field(name).type
        is_list = isinstance(kind, pa.BaseExtensionType) or not is_leaf(plain_type(kind))
        if is_list or _may_be_null(parquet, name):
            decoded.append(name)
        else:
            yield name, pa.array([], kind)
    for number in range(parquet.num_row_groups if decoded else 0):
        with expecting(file, f"a readable row group {number}", DAMAGE):
            table = parquet.read_row_group(number, decoded)
        yield from ((name, chunk) for name in decoded for chunk in table.column(name).chunks)


def _may_be_null(parquet: pq.ParquetFile, name: str) -> bool:
    """Return whether a column of scalars may hold nulls, by the statistics of its row groups."""
    if not parquet.schema_arrow.field(name).nullable:
        return False
    number = next(n for n in range(len(parquet.schema)) if parquet.schema.column(n).path == name)
    groups = (parquet.metadata.row_group(group) for group in range(parquet.num_row_groups))
    counted = [group.column(number).statistics for group in groups if group.num_rows]
    return any(one is None or not one.has_null_count or one.null_count for one in counted)


class ParquetReader(ChunkedReader):
    """Decodes whole row groups under a lock and copies rows out of them."""

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
        super().__init__(schema, np.array(first, np.int64))
        both = zip(files, self._parquets, strict=True)
        self._names = [checked_columns(file, schema, parquet.schema_arrow) for file, parquet in both]
        self._cache: dict[int, dict[str, Any]] = {}  # least recently used first
        self._lock = threading.Lock()  # a ParquetFile is not thread-safe

    def close(self) -> None:
        """Close the files and drop the decoded row groups."""
        for parquet in self._parquets or ():
            parquet.close()
        self._parquets, self._cache = None, {}

    def _rows(self, name: str, chunk: int, rows: slice | Index) -> Any:
        return self._group(chunk)[name][rows]

    def _group(self, chunk: int) -> dict[str, Any]:
        """Return a decoded row group, from the cache if it is there."""
        with self._lock:
            group = self._cache.pop(chunk, None)
            if group is None:
                group = self._timed(self._decoded)(chunk)
                while len(self._cache) >= CACHED:
                    del self._cache[next(iter(self._cache))]
            self._cache[chunk] = group
            return group

    def _decoded(self, chunk: int) -> dict[str, Any]:
        number, group = self._groups[chunk]
        parquet = unclosed(self._parquets)[number]
        names = self._names[number]
        rows = int(np.diff(self._first)[chunk])
        with expecting(self._files[number], f"row group {group}", DAMAGE):
            table = parquet.read_row_group(group, list(dict.fromkeys(names.values())))
            batch = arrays(self._files[number], self.schema, table, names)
        if any(len(array) != rows for array in batch.values()):
            raise corrupt(self._files[number], f"{rows} rows in row group {group}", table.num_rows)
        return batch
