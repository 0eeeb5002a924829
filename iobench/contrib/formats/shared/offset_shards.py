"""Shards that begin with a table of sample offsets: MDS and LitData.

A shard holds the number of samples, an offset per sample and one past the last, all u32; optionally a
description; the samples. A sample holds the sizes of some of its columns, u32, then the columns without
gaps.
"""

from __future__ import annotations

import itertools
import json
import struct
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from iobench.base.errors import corrupt, expecting
from iobench.base.files import regular
from iobench.contrib.formats.shared.external import check_lengths, first_true, unequal_samples
from iobench.contrib.formats.shared.mapped_files import Maps, runs
from iobench.contrib.formats.shared.record_writer import refuse_large, sample_parts
from iobench.contrib.formats.shared.records import Column, Decoder, Records, RecordSource, pixels
from iobench.formats import Array, Batch, Field, Index, fields_by_name

INDEX = "index.json"
WORD = 4  # bytes of a size or an offset
COUNT_AT = 2 * WORD
MOST_SHARD_BYTES = (1 << 32) - 1  # limit of a u32 offset
MOST_SAMPLE_BYTES = MOST_SHARD_BYTES - (1 << 20)
Self = TypeVar("Self", bound="OffsetShards")
Prefix: TypeAlias = Callable[[Field, int], bytes]


def read_index(path: Path) -> dict[str, Any]:
    """Read a JSON index; CorruptArtifact if it is not one."""
    with expecting(path, "an index", (OSError, ValueError, RecursionError, MemoryError)):
        index = json.loads(regular(path).read_bytes())
    if not isinstance(index, dict):
        raise corrupt(path, "an index", type(index).__name__)
    return index


def maps_of(files: Sequence[Path], sizes: Sequence[int]) -> Maps:
    """Return the mapped shards; CorruptArtifact if one is missing or not of the size in the index."""
    for file, size in zip(files, sizes, strict=True):
        if not file.is_file():
            raise corrupt(file, f"{size} bytes", "no such file", kind="missing-file")
        if (actual := file.stat().st_size) != size:
            kind = "truncated" if actual < size else "trailing-bytes"
            raise corrupt(file, f"{size} bytes", actual, kind=kind)
    return Maps(files)


@dataclass(frozen=True)
class ShardColumn:
    """A column of a sample."""

    size: int | None  # bytes of the column; None if each sample stores its size
    field: Field | None = None  # field that the column holds; None if it is not read
    prefix: bytes = b""  # bytes before the column's values
    count: str = ""  # dtype of a ragged sample's length within the prefix, from COUNT_AT on
    encoded: bool = False  # True for an image of any stored size, which is decoded as it is read

    @property
    def is_known(self) -> bool:
        """True for a field of as many bytes in every sample."""
        if self.field is None or self.size is not None:
            return self.field is not None
        return not (self.encoded or self.field.is_ragged)


class OffsetShards(RecordSource):
    """Shards of `rows` samples each, which an index at `path` lists."""

    stored: Mapping[str, str]  # how each column is stored, by name in their order

    def __init__(self, path: Path, files: Sequence[Path], rows: Sequence[int], sizes: Sequence[int]) -> None:
        self.path, self.files, self.rows, self._sizes = path, tuple(files), rows, sizes
        self.samples = sum(rows)
        self._layout: tuple[ShardColumn, ...] = ()

    def opened(self: Self) -> Self:
        """Map the shards, and return this; CorruptArtifact if one is missing or not of the index's size."""
        self.maps = maps_of(self.files, self._sizes)
        return self

    def layout(self, fields: Sequence[Field]) -> tuple[ShardColumn, ...]:
        """Return the columns of a sample with these fields selected; CorruptArtifact if one is another."""
        names = fields_by_name(self.path, self.stored)
        if missing := [field.name for field in fields if field.name not in names]:
            raise corrupt(self.path, f"columns {', '.join(missing)}", ", ".join(self.stored))
        selected = {names[field.name]: field for field in fields}
        return tuple(self.column(name, selected.get(name)) for name in self.stored)

    @abstractmethod
    def column(self, name: str, field: Field | None) -> ShardColumn:
        """Return a column, which holds a field if one is given; CorruptArtifact if it holds another."""

    def check(self, fields: Sequence[Field]) -> None:
        """Raise CorruptArtifact for fields that the index does not list so."""
        if fields:
            self._layout = self.layout(fields)

    def scan(self) -> Iterator[Records]:
        """Yield the samples of each shard; CorruptArtifact if its table contradicts the index."""
        first = 0
        for number, (path, rows) in enumerate(zip(self.maps.files, self.rows, strict=True)):
            edges = offsets_of(self.maps[number], path, rows)
            yield Records(self.maps, np.full(rows, number, np.int64), edges[:-1], np.diff(edges), first)
            first += rows

    def columns(
        self, records: Records, fields: Sequence[Field], thorough: bool = False
    ) -> Mapping[str, Column]:
        """Return the columns of the fields.

        In a shard of samples of one known size, only those of the first are read, unless this is `thorough`.
        CorruptArtifact if tables or sizes contradict each other, or a field is not of one size.
        """
        layout = self._layout or self.layout(fields)
        heads = WORD * sum(column.size is None for column in layout)
        stored, path = self.maps[int(records.file[0])], records.path(0)
        begins, lengths = records.offset, records.length
        if int(lengths.min()) < heads:
            raise corrupt(path, f"samples of at least {heads} bytes", int(lengths.min()))
        known = all(column.is_known for column in layout)
        one = known and not thorough and bool((lengths == lengths[0]).all())
        sampled = begins[:1] if one else begins
        sizes = _sizes(stored, sampled, layout)
        ends = heads + np.cumsum(sizes, 1)
        if (row := first_true(ends[:, -1] != lengths[: len(sampled)])) is not None:
            raise corrupt(path, f"{ends[row, -1]} bytes in sample {row}", int(lengths[row]))
        columns = {}
        for column, end, size in zip(layout, ends.T, sizes.T, strict=True):
            if (field := column.field) is None:
                continue
            if not column.encoded:
                _check(stored, records, column, sampled + end - size, size)
            begin, values = begins + end - size + len(column.prefix), size - len(column.prefix)
            encoded = Column(begin, values, True)
            columns[field.name] = encoded if column.encoded else Column.of(field, begin, values)
        return columns

    def decoder(self, field: Field) -> Decoder:
        """Return the decoder of images of the field's shape."""
        return pixels()


def _sizes(stored: Array, begins: Index, layout: Sequence[ShardColumn]) -> Array:
    """Return the bytes of all columns of the samples at these offsets, int64 (samples, columns)."""
    count = sum(column.size is None for column in layout)
    heads = np.zeros((len(begins), max(1, count)), np.int64)
    for some, piece in runs(stored, begins, WORD * count) if count else ():
        heads[some] = piece.view("<u4")
    stated = iter(heads.T)
    known = [next(stated) if c.size is None else np.full(len(begins), c.size) for c in layout]
    return np.stack(known, 1).astype(np.int64)


def offsets_of(stored: Array, path: Path, rows: int) -> Index:
    """Return a shard's table: the offset of each sample, and the end of the last one."""
    table = WORD * (rows + 2)
    if rows < 1 or len(stored) < table:
        raise corrupt(path, f"a shard of {rows} samples", f"{len(stored)} bytes")
    words = stored[:table].view("<u4").astype(np.int64)
    edges: Index = words[1:]
    if words[0] != rows:
        raise corrupt(path, f"{rows} samples", f"{words[0]}")
    if edges[0] < table or edges[-1] > len(stored) or (np.diff(edges) < 0).any():
        raise corrupt(path, f"increasing sample offsets within {len(stored)} bytes", "others")
    return edges


def _check(stored: Array, records: Records, column: ShardColumn, begins: Index, sizes: Array) -> None:
    """Raise CorruptArtifact if a column differs from its field in one of these samples."""
    field, width = column.field, len(column.prefix)
    assert field is not None
    lengths = sizes - width
    check_lengths(field, lengths, field.sample_bytes, "bytes", records.path, records.first)
    if not width:
        return
    expected = np.tile(np.frombuffer(column.prefix, np.uint8), (len(sizes) if field.is_ragged else 1, 1))
    if field.is_ragged:
        counts = (lengths // field.sample_bytes).astype(column.count)
        expected[:, COUNT_AT : COUNT_AT + WORD] = counts.view(np.uint8).reshape(-1, WORD)
    for some, prefixes in runs(stored, begins, width):
        differ = (prefixes != (expected[some] if field.is_ragged else expected)).any(1)
        if (odd := first_true(differ)) is not None:
            row, other = some.start + odd, "another shape or dtype"
            path, problem = records.path(row), f"{field.name} of sample {records.first + row}"
            if field.is_ragged:
                raise corrupt(path, f"{problem}: {counts[row]} × {field.dtype} {field.inner}", other)
            raise unequal_samples(path, problem, f"{field.dtype} {field.shape}", other)


def ragged_records(
    format_name: str, fields: Sequence[Field], batches: Iterable[Batch], prefix: Prefix | None = None
) -> Iterator[bytes]:
    """Yield the bytes of each sample: sizes of columns, then the columns.

    Without `prefix` only ragged columns have a size. With it all have, and it returns the bytes before the
    values of a field, of which a sample has this length. UnsupportedSchema if a sample is too large.
    """
    sized = [prefix is not None or field.is_ragged for field in fields]
    what = f"format {format_name} cannot hold a sample"
    for parts in itertools.chain.from_iterable(sample_parts(batch, fields) for batch in batches):
        heads = [b""] * len(parts)
        if prefix is not None:
            heads = [prefix(f, len(p) // f.sample_bytes) for f, p in zip(fields, parts, strict=True)]
        sizes = [len(head) + len(part) for head, part in zip(heads, parts, strict=True)]
        refuse_large(what, sum(sizes), MOST_SAMPLE_BYTES)
        stated = [size for size, states in zip(sizes, sized, strict=True) if states]
        both = [one for pair in zip(heads, parts, strict=True) for one in pair]
        yield b"".join([struct.pack(f"<{len(stated)}I", *stated), *both])


def table(sizes: Index, description: bytes = b"") -> bytes:
    """Return the start of a shard of samples of so many bytes: table and description."""
    begin = WORD * (len(sizes) + 2) + len(description)
    edges = begin + np.append(0, np.cumsum(sizes))
    return struct.pack("<I", len(sizes)) + edges.astype("<u4").tobytes() + description
