"""FFCV's beton, version 2: one file, `data.beton`, written and read without FFCV.

A header; a description of each field; per sample 8 bytes for each field, which are the value of an int64
or float64 scalar and else where its array begins; from the next page on the arrays, a sample's in one
page; a table of them (sample, offset, bytes). Other scalars are arrays of shape (1,) there.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from iobench.formats._errors import CorruptArtifact, UnsupportedSchema, corrupt
from iobench.formats._foreign import fields_by_name
from iobench.formats._format import Format
from iobench.formats._placed import Found, Maps, PlacedReader
from iobench.formats._placement import Index, Listed, Placement, Strided
from iobench.formats._records import Record, write_at
from iobench.formats._schema import DTYPES, Array, Batch, Field, Schema, raw_bytes

DATA_FILE = "data.beton"
HEADER = struct.Struct("<HHIQQ")  # version, fields, bytes of a page, samples, where the table begins
VERSION = 2
DESCRIPTION = struct.Struct("<B16s1024s")  # type, name, arguments
FLOAT, INT, RGB_IMAGE, BYTES, NDARRAY, JSON_TEXT, TENSOR = range(7)
POINTED: list[tuple[str, str]] = [("offset", "<u8"), ("bytes", "<u8")]
IN_FRONT: dict[int, np.dtype[Any]] = {  # what each type has in front of the data, for each sample
    FLOAT: np.dtype("<f8"),
    INT: np.dtype("<i8"),
    RGB_IMAGE: np.dtype([("mode", "<u1"), ("width", "<u2"), ("height", "<u2"), ("offset", "<u8")]),
    BYTES: np.dtype(POINTED),
    NDARRAY: np.dtype("<u8"),
    JSON_TEXT: np.dtype(POINTED),
    TENSOR: np.dtype("<u8"),
}
SCALARS = {"float64": FLOAT, "int64": INT}
SHAPE = struct.Struct("<32QQ")  # sizes, zeros after the last; bytes of the dtype's description
WORD = 8
ENTRY = np.dtype([("sample", "<u8"), ("offset", "<u8"), ("bytes", "<u8")])
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
        if schema.sample_bytes > MOST_PAGE_BYTES:
            largest = max(schema.fields, key=lambda field: field.sample_bytes)
            raise UnsupportedSchema(
                f"format {self.name} cannot hold samples of {schema.sample_bytes} bytes "
                f"(field {largest.name} has {largest.sample_bytes} of them); "
                f"a page has at most {MOST_PAGE_BYTES}"
            )

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
        beton = _Beton(maps)
        if beton.samples != schema.samples:
            raise corrupt(beton.path, f"{schema.samples} samples", beton.samples)
        return PlacedReader(schema, maps, lambda kept: Found(beton.placement(schema)))

    def size_bound(self, schema: Schema) -> int:
        """Whole pages, the words and the table."""
        layout = _Layout.of(schema)
        return layout.end + layout.entries * ENTRY.itemsize + (1 << 20)

    def recognises(self, path: Path) -> bool:
        """A file whose name ends in .beton."""
        return path.suffix == ".beton" and path.is_file()

    def schema_of(self, path: Path, told: Sequence[Field] = ()) -> Schema:
        """What the file says of its fields; with fields told, these alone."""
        maps = Maps([path])
        try:
            beton = _Beton(maps)
            schema = Schema(beton.samples, tuple(told) or beton.known())
            beton.placement(schema)
            return schema
        finally:
            maps.close()


@dataclass(frozen=True)
class _Layout:
    """Where everything is put: what comes first, samples to a page, and the places in a sample's record."""

    head: bytes
    fields: tuple[Field, ...]
    record: Record
    samples: int
    page: int

    @classmethod
    def of(cls, schema: Schema) -> _Layout:
        record = Record.of([field for field in schema.fields if not _is_word(field)])
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


def _is_word(field: Field) -> bool:
    return not field.shape and field.dtype in SCALARS


def _description(field: Field) -> bytes:
    if _is_word(field):
        return DESCRIPTION.pack(SCALARS[field.dtype], field.name.encode(), b"")
    dtype = json.dumps(np.dtype(field.dtype).descr).encode()
    shape = field.shape or (1,)
    return DESCRIPTION.pack(
        NDARRAY, field.name.encode(), SHAPE.pack(*shape, *[0] * (32 - len(shape)), len(dtype)) + dtype
    )


class _Beton:
    """What a file says of itself: its samples, and the type, dtype and shape of each field."""

    def __init__(self, maps: Maps) -> None:
        self.path, self._stored = maps.files[0], maps[0]
        start = self._stored[: HEADER.size].tobytes().ljust(HEADER.size, b"\0")
        version, count, _, self.samples, self._table = HEADER.unpack(start)
        self._front = HEADER.size + count * DESCRIPTION.size
        if version != VERSION or not count or not self.samples or self._front > len(self._stored):
            raise corrupt(self.path, f"a beton of version {VERSION}", "another file, or a part of one")
        self.fields: dict[str, Field | None] = {}
        kinds = []
        for number in range(count):
            at = HEADER.size + number * DESCRIPTION.size
            kind, name, arguments = DESCRIPTION.unpack(self._stored[at : at + DESCRIPTION.size].tobytes())
            text = name.partition(b"\0")[0].decode("ascii", "replace")
            if text in self.fields or not text:
                raise corrupt(self.path, "fields of different names", text)
            if kind not in IN_FRONT:
                raise CorruptArtifact(f"{self.path}: field {text} is of a type of somebody's own, {kind}")
            self.fields[text] = self._field(kind, text, arguments)
            kinds.append(("", IN_FRONT[kind]))
        self._row = np.dtype(kinds, align=True)
        self._end = self._front + self.samples * self._row.itemsize
        if self._end > len(self._stored):
            raise corrupt(self.path, f"{self.samples} samples", f"{len(self._stored)} bytes")

    def known(self) -> tuple[Field, ...]:
        """Every field; CorruptArtifact names the first that is no array or scalar."""
        names = fields_by_name(self.path, self.fields)
        return tuple(Field(name, *self._shape(original)) for name, original in names.items())

    def placement(self, schema: Schema) -> Mapping[str, Placement]:
        """Where the fields lie; CorruptArtifact where one is another, or an offset or the table lies."""
        names = list(self.fields)
        by_field = fields_by_name(self.path, names)
        front = self._stored[self._front : self._end].view(self._row)
        found: dict[str, Placement] = {}
        for field in schema.fields:
            if field.name not in by_field:
                raise corrupt(self.path, f"field {field.name}", ", ".join(names))
            shape, dtype = self._shape(by_field[field.name])
            if (shape, dtype) not in ((field.shape, field.dtype), (field.shape or (1,), field.dtype)):
                raise corrupt(self.path, f"{field.name} as {field.dtype} {field.shape}", f"{dtype} {shape}")
            part = f"f{names.index(by_field[field.name])}"
            if _is_word(field) and not shape:
                at = self._front + self._at(part)
                found[field.name] = Strided((self.path,), at, self._row.itemsize)
            else:
                offsets = front[part].astype(np.int64)
                self._check(field, offsets)
                found[field.name] = Listed((self.path,), np.broadcast_to(np.int64(0), offsets.shape), offsets)
        self._arrays()
        return found

    def _at(self, part: str) -> int:
        """Where a field's value or offset is, in what a sample has in front."""
        parts = self._row.fields
        assert parts is not None
        return int(parts[part][1])

    def _shape(self, name: str) -> tuple[tuple[int, ...], str]:
        known = self.fields[name]
        if known is None:
            raise CorruptArtifact(
                f"{self.path}: field {name} is no array or scalar of one size; write it as an NDArrayField, "
                "padded or cropped to one shape"
            )
        return known.shape, known.dtype

    def _check(self, field: Field, offsets: Index) -> None:
        """CorruptArtifact where an array is not in the table, or not as long there."""
        table = self._arrays()
        at = np.minimum(np.searchsorted(table["offset"], offsets.view(np.uint64)), len(table) - 1)
        wrong = (table["offset"][at] != offsets.view(np.uint64)) | (table["bytes"][at] != field.sample_bytes)
        if wrong.any():
            row = int(wrong.argmax())
            raise corrupt(
                self.path, f"{field.name} of sample {row} in the table of arrays", "another place or size"
            )

    def _arrays(self) -> Array:
        """The table, sorted by offset; CorruptArtifact where it is cut or arrays overlap or lie elsewhere."""
        held = len(self._stored) - self._table
        if self._table < self._end or held < 0 or held % ENTRY.itemsize:
            raise corrupt(self.path, "a table of arrays at its end", f"{held} bytes")
        table = np.sort(self._stored[self._table :].view(ENTRY), order="offset")
        if len(table):
            ends = table["offset"] + table["bytes"]
            if (
                table["offset"][0] < self._end
                or ends[-1] > self._table
                or (ends[:-1] > table["offset"][1:]).any()
            ):
                raise corrupt(self.path, "arrays one after the other before their table", "others")
        elif any(known is None or not _is_word(known) for known in self.fields.values()):
            raise corrupt(self.path, "a table of arrays at its end", "none")
        return table

    def _field(self, kind: int, name: str, arguments: bytes) -> Field | None:
        """A field as it is described, under a name that does not matter; None where it is of another type."""
        if kind in (FLOAT, INT):
            return Field("x", (), "float64" if kind == FLOAT else "int64")
        if kind not in (NDARRAY, TENSOR):
            return None
        *sizes, length = SHAPE.unpack_from(arguments)
        shape = tuple(size for size in sizes if size)
        try:
            ((_, text),) = json.loads(arguments[SHAPE.size : SHAPE.size + length])
            dtype = np.dtype(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise corrupt(self.path, f"the dtype of {name}", str(error).partition("\n")[0]) from error
        if dtype.name not in DTYPES or not dtype.isnative or not shape or max(shape) >> 40:
            raise corrupt(self.path, f"{name} of one of {', '.join(DTYPES)}", f"{dtype} {shape}")
        return Field("x", shape, dtype.name)
