"""FFCV's beton, version 2: one file, `data.beton`, written and read without FFCV.

A header; a description of each field; per sample 8 bytes for each field, which are the value of an int64
or float64 scalar and else where its array begins; from the next page on the arrays, a sample's in one
page; a table of them (sample, offset, bytes). Other scalars are arrays of shape (1,) there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from iobench.base.errors import (
    UnsupportedSchema,
    corrupt,
)
from iobench.formats._beton import (
    DESCRIPTION,
    ENTRY,
    HEADER,
    NDARRAY,
    SCALARS,
    SHAPE,
    VERSION,
    WORD,
    Beton,
    is_word,
)
from iobench.formats._format import Format
from iobench.formats._placed_reader import FieldLocations, Maps, PlacedReader
from iobench.formats._placement import Index
from iobench.formats._record_writer import RecordTemplate, write_at
from iobench.formats._schema import Array, Batch, Field, Schema, raw_bytes

DATA_FILE = "data.beton"
PAGE_BYTES = 8 << 20  # FFCV's own default
MOST_PAGE_BYTES = 1 << 31
MOST_NAME = 15  # FFCV cuts longer ones
MOST_AXES = 31


@dataclass(frozen=True)
class Ffcv(Format):
    """One beton of NDArrayField, IntField and FloatField."""

    name: ClassVar[str] = "ffcv"
    summary: ClassVar[str] = "FFCV's beton, arrays and scalars of one size, without FFCV"
    library: ClassVar[str] = "numpy"

    def check_schema(self, schema: Schema) -> None:
        """As any format, and refuse long names and samples larger than a page."""
        super().check_schema(schema)
        for field in schema.fields:
            if len(field.name) > MOST_NAME or len(field.shape) > MOST_AXES:
                raise UnsupportedSchema(
                    f"format {self.name} cannot hold field {field.name}: a name has at most {MOST_NAME} "
                    f"characters and an array at most {MOST_AXES} axes there"
                )
        self._refuse_large(schema, schema.sample_bytes, MOST_PAGE_BYTES, "a page")

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write the arrays, then what stands before and after them."""
        path.mkdir()
        layout = _Layout.of(schema)
        with open(path / DATA_FILE, "xb", buffering=0) as file:
            file.truncate(layout.end)
            start = 0
            for batch in batches:
                rows = np.arange(start, start + len(next(iter(batch.values()))))
                at = layout.metadata + start * WORD * len(schema.fields)
                write_at(file.fileno(), raw_bytes(layout.words(rows, batch)), at)
                _write_arrays(file.fileno(), layout, rows, batch)
                start += len(rows)
            write_at(file.fileno(), memoryview(layout.head), 0)
            write_at(file.fileno(), raw_bytes(layout.table()), layout.end)

    def open(self, path: Path, schema: Schema, random: bool = False) -> PlacedReader:
        """A reader, after the descriptions of the fields were compared with the schema."""
        maps = Maps([path / DATA_FILE if path.is_dir() else path])
        beton = Beton(maps)
        if beton.samples != schema.samples:
            raise corrupt(beton.path, f"{schema.samples} samples", beton.samples)
        return PlacedReader(schema, maps, lambda load_or_build: FieldLocations(beton.placement(schema)))

    def size_bound(self, schema: Schema) -> int:
        """Whole pages, the words and the table."""
        layout = _Layout.of(schema)
        return layout.end + layout.entries * ENTRY.itemsize + (1 << 20)

    def sniff(self, path: Path) -> bool:
        """A file whose name ends in .beton."""
        return path.suffix == ".beton" and path.is_file()

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """What the file says of its fields; with fields told, these alone."""
        maps = Maps([path])
        try:
            beton = Beton(maps)
            schema = Schema(beton.samples, tuple(fields) or beton.known())
            beton.placement(schema)
            return schema
        finally:
            maps.close()


@dataclass(frozen=True)
class _Layout:
    """Where everything is put: what comes first, samples to a page, and the places in a sample's record."""

    head: bytes
    fields: tuple[Field, ...]
    record: RecordTemplate
    samples: int
    page: int

    @classmethod
    def of(cls, schema: Schema) -> _Layout:
        record = RecordTemplate.of([field for field in schema.fields if not is_word(field)])
        page = max(PAGE_BYTES, 1 << (len(record.pattern) - 1).bit_length() if record.pattern else 1)
        layout = cls(b"", schema.fields, record, schema.samples, page)
        described = b"".join(map(_description, schema.fields))
        head = HEADER.pack(VERSION, len(schema.fields), page, schema.samples, layout.end) + described
        return cls(head, schema.fields, record, schema.samples, page)

    @property
    def metadata(self) -> int:
        """Where the words begin."""
        return HEADER.size + DESCRIPTION.size * len(self.fields)

    @property
    def data(self) -> int:
        """Where the first page begins."""
        return -(-(self.metadata + self.samples * WORD * len(self.fields)) // self.page) * self.page

    @property
    def rows(self) -> int:
        """Samples in a page."""
        return self.page // max(1, len(self.record.pattern))

    @property
    def end(self) -> int:
        """Where the last page ends."""
        return self.data + (-(-self.samples // self.rows) * self.page if self.record.pattern else 0)

    @property
    def entries(self) -> int:
        """Arrays in all."""
        return self.samples * len(self.record.places)

    def begins(self, rows: Index) -> Index:
        """Where the records of these samples begin."""
        within = rows % self.rows * len(self.record.pattern)
        return np.asarray(self.data + rows // self.rows * self.page + within)

    def words(self, rows: Index, batch: Batch) -> Array:
        """What stands for these samples in front: values of scalars, and where arrays begin."""
        words = np.empty((len(rows), len(self.fields)), "<u8")
        for number, field in enumerate(self.fields):
            place = self.record.places.get(field.name)
            words[:, number] = batch[field.name].view("<u8") if place is None else self.begins(rows) + place
        return words

    def table(self) -> Array:
        """Every array."""
        rows = np.arange(self.samples)
        table = np.empty((self.samples, len(self.record.places)), ENTRY)
        fields = {field.name: field for field in self.fields}
        for number, (name, place) in enumerate(self.record.places.items()):
            table["sample"][:, number] = rows
            table["offset"][:, number] = self.begins(rows) + place
            table["bytes"][:, number] = fields[name].sample_bytes
        return table


def _write_arrays(descriptor: int, layout: _Layout, rows: Index, batch: Batch) -> None:
    """Write records page by page."""
    if not layout.record.pattern:
        return
    low = 0
    while low < len(rows):
        most = max(1, (4 << 20) // len(layout.record.pattern))
        high = min(len(rows), low + most, low + layout.rows - int(rows[low]) % layout.rows)
        table = layout.record.table({n: batch[n][low:high] for n in layout.record.places})
        write_at(descriptor, raw_bytes(table), int(layout.begins(rows[low : low + 1])[0]))
        low = high


def _description(field: Field) -> bytes:
    if is_word(field):
        return DESCRIPTION.pack(SCALARS[field.dtype], field.name.encode(), b"")
    dtype = json.dumps(np.dtype(field.dtype).descr).encode()
    shape = field.shape or (1,)
    return DESCRIPTION.pack(
        NDARRAY, field.name.encode(), SHAPE.pack(*shape, *[0] * (32 - len(shape)), len(dtype)) + dtype
    )
