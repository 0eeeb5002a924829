"""Format ffcv: FFCV's beton, version 2, in one file `data.beton`, written and read without FFCV.

Layout: header; description of each field; metadata, 8 bytes per sample and field: the value of an int64 or
float64 scalar, otherwise the offset of the array; from the next page on the arrays, those of a sample in one
page; table of the arrays (sample, offset, bytes). Other scalars are stored as arrays of shape (1,).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from iobench.base.errors import UnsupportedSchema, corrupt
from iobench.contrib.formats.ffcv.beton import (
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
    stored_name,
)
from iobench.contrib.formats.shared.placed_reader import FieldLocations, Maps, PlacedReader
from iobench.contrib.formats.shared.record_writer import RecordTemplate, write_at
from iobench.formats import Array, Batch, Detectable, Field, Format, Index, Schema, raw_bytes, stored_names

DATA_FILE = "data.beton"
PAGE_BYTES = 8 << 20  # FFCV's own default
MOST_PAGE_BYTES = 1 << 31
MOST_AXES = 31


@dataclass(frozen=True)
class Ffcv(Format, Detectable):
    """One beton with NDArrayField, IntField and FloatField."""

    name: ClassVar[str] = "ffcv"
    summary: ClassVar[str] = "FFCV's beton, arrays and scalars of one size, without FFCV"
    library: ClassVar[str] = "numpy"

    def check_schema(self, schema: Schema) -> None:
        """Raise UnsupportedSchema also for many axes and samples larger than a page."""
        super().check_schema(schema)
        for field in schema.fields:
            if len(field.shape) > MOST_AXES:
                raise UnsupportedSchema(
                    f"format {self.name} cannot hold field {field.name}",
                    kind="too-many-axes",
                    expected=f"at most {MOST_AXES} axes",
                    found=len(field.shape),
                )
        self._refuse_large(schema, schema.sample_bytes, MOST_PAGE_BYTES, "a page")

    def stored_name(self, name: str) -> str:
        """Return a name of at most 15 ASCII characters."""
        return stored_name(name)

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write metadata and arrays, then header and table."""
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
        """Check header and number of samples, and return a reader."""
        maps = Maps([path / DATA_FILE if path.is_dir() else path])
        beton = Beton(maps)
        if beton.samples != schema.samples:
            raise corrupt(beton.path, f"{schema.samples} samples", beton.samples)
        return PlacedReader(schema, maps, lambda load_or_build: FieldLocations(beton.placement(schema)))

    def size_bound(self, schema: Schema) -> int:
        """Return whole pages plus metadata and table."""
        layout = _Layout.of(schema)
        return layout.end + layout.entries * ENTRY.itemsize + (1 << 20)

    def sniff(self, path: Path) -> bool:
        """Return True for a file whose name ends in .beton."""
        return path.suffix == ".beton" and path.is_file()

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema that the file describes, or that of `fields` if given."""
        with closing(Maps([path])) as maps:
            beton = Beton(maps)
            schema = Schema(beton.samples, tuple(fields) or beton.known())
            beton.placement(schema)
            return schema


@dataclass(frozen=True)
class _Layout:
    """Layout of a file to write: header and descriptions, page size, and a sample's record of arrays."""

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
        names = stored_names(schema.fields, stored_name)
        described = b"".join(_description(names[field.name], field) for field in schema.fields)
        head = HEADER.pack(VERSION, len(schema.fields), page, schema.samples, layout.end) + described
        return cls(head, schema.fields, record, schema.samples, page)

    @property
    def metadata(self) -> int:
        """Offset of the metadata."""
        return HEADER.size + DESCRIPTION.size * len(self.fields)

    @property
    def data(self) -> int:
        """Offset of the first page."""
        return -(-(self.metadata + self.samples * WORD * len(self.fields)) // self.page) * self.page

    @property
    def rows(self) -> int:
        """Samples per page."""
        return self.page // max(1, len(self.record.pattern))

    @property
    def end(self) -> int:
        """End of the last page."""
        return self.data + (-(-self.samples // self.rows) * self.page if self.record.pattern else 0)

    @property
    def entries(self) -> int:
        """Number of arrays."""
        return self.samples * len(self.record.places)

    def begins(self, rows: Index) -> Index:
        """Return the offsets of these samples' records."""
        within = rows % self.rows * len(self.record.pattern)
        return np.asarray(self.data + rows // self.rows * self.page + within)

    def words(self, rows: Index, batch: Batch) -> Array:
        """Return the metadata of these samples: values of scalars and offsets of arrays."""
        words = np.empty((len(rows), len(self.fields)), "<u8")
        for number, field in enumerate(self.fields):
            place = self.record.places.get(field.name)
            words[:, number] = batch[field.name].view("<u8") if place is None else self.begins(rows) + place
        return words

    def table(self) -> Array:
        """Return the table of arrays."""
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


def _description(name: str, field: Field) -> bytes:
    if is_word(field):
        return DESCRIPTION.pack(SCALARS[field.dtype], name.encode(), b"")
    dtype = json.dumps(np.dtype(field.dtype).descr).encode()
    shape = field.shape or (1,)
    return DESCRIPTION.pack(
        NDARRAY, name.encode(), SHAPE.pack(*shape, *[0] * (32 - len(shape)), len(dtype)) + dtype
    )
