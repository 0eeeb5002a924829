"""Writing of a beton: metadata, the arrays of each sample within a page, and the table of arrays."""

from __future__ import annotations

import itertools
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from iobench.base.errors import UnsupportedSchema
from iobench.contrib.formats.ffcv.beton import (
    BYTES,
    DESCRIPTION,
    ENTRY,
    HEADER,
    NDARRAY,
    SCALARS,
    SHAPE,
    VERSION,
    is_word,
    row_of,
    stored_name,
)
from iobench.contrib.formats.shared.record_writer import RecordTemplate, sample_bytes, write_at
from iobench.formats import Array, Batch, Field, Index, Schema, raw_bytes, stored_names

PAGE_BYTES = 8 << 20  # FFCV's own default
MOST_PAGE_BYTES = 1 << 31
PIECE_BYTES = 4 << 20  # of arrays or metadata that are assembled at once
BLOCK_BYTES = 8 << 10  # most that a gap between pages takes on a disk


def write_beton(path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
    """Write metadata and arrays, then table and header."""
    layout = _Layout.of(schema)
    with open(path, "x+b", buffering=0) as file:
        start, pages = 0, _pages(layout)
        for batch in batches:
            offsets, sizes = pages.write(file.fileno(), start, batch)
            write_at(file.fileno(), raw_bytes(layout.rows(batch, offsets, sizes)), layout.at(start))
            start += len(offsets)
        file.truncate(pages.end)
        layout.write_table(file.fileno(), pages.end)
        write_at(file.fileno(), memoryview(layout.head(pages.page, pages.end)), 0)


def most_bytes(schema: Schema) -> int:
    """Return a limit of the bytes that a file takes on a disk."""
    layout = _Layout.of(schema)
    table = schema.samples * len(layout.arrays) * ENTRY.itemsize
    if not schema.ragged:
        return _FixedPages(layout).end + table + (1 << 20)
    arrays = schema.logical_bytes + schema.samples * len(layout.arrays)  # an empty array takes a byte
    gaps = 1 + 2 * arrays // PAGE_BYTES
    return layout.at(schema.samples) + arrays + gaps * BLOCK_BYTES + table + (1 << 20)


def _kind(field: Field) -> int:
    """Return FFCV's type of a field."""
    if field.is_ragged:
        return BYTES
    return SCALARS[field.dtype] if is_word(field) else NDARRAY


@dataclass(frozen=True)
class _Layout:
    """Metadata of a file to write: descriptions of the fields, and a row per sample."""

    fields: tuple[Field, ...]
    samples: int
    row: np.dtype[Any]

    @classmethod
    def of(cls, schema: Schema) -> _Layout:
        return cls(schema.fields, schema.samples, row_of([_kind(field) for field in schema.fields]))

    @property
    def arrays(self) -> tuple[Field, ...]:
        """Fields whose samples are arrays, not words in the metadata."""
        return tuple(field for field in self.fields if not is_word(field))

    def at(self, sample: int) -> int:
        """Return the offset of a sample's metadata, or with the number of samples, of their end."""
        return HEADER.size + DESCRIPTION.size * len(self.fields) + sample * self.row.itemsize

    def head(self, page: int, end: int) -> bytes:
        """Return header and descriptions, for the page size and the offset of the table."""
        names = stored_names(self.fields, stored_name)
        described = b"".join(_description(names[field.name], field) for field in self.fields)
        return HEADER.pack(VERSION, len(self.fields), page, self.samples, end) + described

    def rows(self, batch: Batch, offsets: Array, sizes: Array) -> Array:
        """Return the metadata of a batch, whose arrays have these offsets and bytes, (samples, arrays)."""
        rows = np.empty(len(offsets), self.row)
        columns = iter(range(offsets.shape[1]))
        for number, field in enumerate(self.fields):
            part = rows[f"f{number}"]
            if is_word(field):
                part[...] = batch[field.name]
                continue
            column = next(columns)
            pointer = part["offset"] if field.is_ragged else part
            pointer[...] = offsets[:, column]
            if field.is_ragged:
                part["bytes"] = sizes[:, column]
        return rows

    def write_table(self, descriptor: int, end: int) -> None:
        """Write the table of arrays, which follows from the metadata, to offset `end`."""
        step = max(1, PIECE_BYTES // self.row.itemsize)
        for low in range(0, self.samples, step) if self.arrays else ():
            high = min(self.samples, low + step)
            stored = os.pread(descriptor, (high - low) * self.row.itemsize, self.at(low))
            table = self._entries(np.frombuffer(stored, self.row), low)
            write_at(descriptor, raw_bytes(table), end + low * len(self.arrays) * ENTRY.itemsize)

    def _entries(self, rows: Array, first: int) -> Array:
        """Return the table of these rows of metadata, of which the first is sample `first`."""
        table = np.empty((len(rows), len(self.arrays)), ENTRY)
        table["sample"] = np.arange(first, first + len(rows))[:, None]
        numbers = [number for number, field in enumerate(self.fields) if not is_word(field)]
        for column, (number, field) in enumerate(zip(numbers, self.arrays, strict=True)):
            part = rows[f"f{number}"]
            table["offset"][:, column] = part["offset"] if field.is_ragged else part
            table["bytes"][:, column] = part["bytes"] if field.is_ragged else field.sample_bytes
        return table


def _pages(layout: _Layout) -> _Pages:
    ragged = any(field.is_ragged for field in layout.fields)
    return _RaggedPages(layout) if ragged else _FixedPages(layout)


class _Pages(ABC):
    """Pages of a file, each with the arrays of whole samples.

    Attributes
    ----------
    page : int
        Bytes of a page: a power of two, at whose multiples pages begin.
    end : int
        Offset behind the last array.
    """

    page: int
    end: int

    @abstractmethod
    def write(self, descriptor: int, start: int, batch: Batch) -> tuple[Array, Array]:
        """Write the arrays of a batch from sample `start` on; return offsets and bytes, (samples, arrays)."""


class _FixedPages(_Pages):
    """Arrays of one size per field, written as tables with a row per sample."""

    def __init__(self, layout: _Layout) -> None:
        self._record = RecordTemplate.of(layout.arrays)
        self._sizes = np.array([field.sample_bytes for field in layout.arrays], np.int64)
        self._width = len(self._record.pattern)
        self.page = max(PAGE_BYTES, 1 << max(0, self._width - 1).bit_length())
        self._per_page = self.page // max(1, self._width)
        self._begin = -(-layout.at(layout.samples) // self.page) * self.page
        self.end = self._begin
        if layout.arrays:
            self.end += -(-layout.samples // self._per_page) * self.page

    def write(self, descriptor: int, start: int, batch: Batch) -> tuple[Array, Array]:
        rows = np.arange(start, start + len(next(iter(batch.values()))))
        begins = self._begins(rows)
        self._write(descriptor, rows, begins, batch)
        offsets = begins[:, None] + np.array(list(self._record.places.values()), np.int64)
        return offsets, np.broadcast_to(self._sizes, offsets.shape)

    def _begins(self, rows: Index) -> Index:
        within = rows % self._per_page * self._width
        return np.asarray(self._begin + rows // self._per_page * self.page + within)

    def _write(self, descriptor: int, rows: Index, begins: Index, batch: Batch) -> None:
        low, most = 0, max(1, PIECE_BYTES // max(1, self._width))
        while self._width and low < len(rows):
            high = min(len(rows), low + most, low + self._per_page - int(rows[low]) % self._per_page)
            table = self._record.table({name: batch[name][low:high] for name in self._record.places})
            write_at(descriptor, raw_bytes(table), int(begins[low]))
            low = high


class _RaggedPages(_Pages):
    """Arrays of any size; a page is as large as the largest sample needs.

    A sample crosses no multiple of the least page that holds it, so none of a larger page. An empty array
    takes a byte: FFCV finds the size of an array by its offset.
    """

    def __init__(self, layout: _Layout) -> None:
        self._fields = layout.arrays
        self.page, self.end = PAGE_BYTES, -(-layout.at(layout.samples) // PAGE_BYTES) * PAGE_BYTES

    def write(self, descriptor: int, start: int, batch: Batch) -> tuple[Array, Array]:
        columns = [sample_bytes(batch, field) for field in self._fields]
        sizes = np.stack([np.diff(edges) for _, edges in columns], 1)
        rooms = np.maximum(sizes, 1)
        totals = rooms.sum(1)
        if totals.max(initial=0) > MOST_PAGE_BYTES:
            raise UnsupportedSchema(
                f"format ffcv cannot hold sample {start + int(totals.argmax())}",
                kind="sample-too-large",
                expected=f"at most {MOST_PAGE_BYTES:,} bytes, the limit of a page",
                found=f"{totals.max():,}",
            )
        begins = np.array([self._place(size) for size in totals.tolist()], np.int64)
        offsets = begins[:, None] + rooms.cumsum(1) - rooms
        _write_runs(descriptor, columns, begins, begins + totals, offsets)
        return offsets, sizes

    def _place(self, size: int) -> int:
        """Return the offset of the next sample, of so many bytes."""
        page = max(PAGE_BYTES, 1 << (size - 1).bit_length())
        if self.end % page + size > page:
            self.end += -self.end % page
        self.page = max(self.page, page)
        self.end += size
        return self.end - size


def _write_runs(
    descriptor: int,
    columns: Sequence[tuple[memoryview, Index]],
    begins: Index,
    ends: Index,
    offsets: Array,
) -> None:
    """Write samples that follow each other at once, so that gaps between pages take no space."""
    after_gap = 1 + np.flatnonzero(begins[1:] != ends[:-1])
    for low, high in itertools.pairwise([0, *after_gap.tolist(), len(begins)]):
        first = int(begins[low])
        run = memoryview(bytearray(int(ends[high - 1]) - first))
        for column, (memory, edges) in enumerate(columns):
            places = (offsets[low:high, column] - first).tolist()
            spans = itertools.pairwise(edges[low : high + 1].tolist())
            for place, (begin, end) in zip(places, spans, strict=True):
                run[place : place + end - begin] = memory[begin:end]
        write_at(descriptor, run, first)


def _description(name: str, field: Field) -> bytes:
    kind = _kind(field)
    if kind != NDARRAY:
        return DESCRIPTION.pack(kind, name.encode(), b"")
    dtype = json.dumps(np.dtype(field.dtype).descr).encode()
    shape = field.shape or (1,)
    arguments = SHAPE.pack(*shape, *[0] * (32 - len(shape)), len(dtype)) + dtype
    return DESCRIPTION.pack(kind, name.encode(), arguments)
