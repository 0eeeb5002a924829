"""What a beton says of itself: its samples, its fields, and where their arrays lie."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from iobench.base.errors import (
    CorruptArtifact,
    corrupt,
)
from iobench.base.text import reason
from iobench.formats._external import fields_by_name
from iobench.formats._placed_reader import Maps
from iobench.formats._placement import Index, Listed, Placement, Strided
from iobench.formats._schema import DTYPES, Array, Field, Schema

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


def is_word(field: Field) -> bool:
    """Whether a field's value itself is what a sample has in front."""
    return not field.shape and field.dtype in SCALARS


class Beton:
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
            if is_word(field) and not shape:
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
        elif any(known is None or not is_word(known) for known in self.fields.values()):
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
            raise corrupt(self.path, f"the dtype of {name}", reason(error)) from error
        if dtype.name not in DTYPES or not dtype.isnative or not shape or max(shape) >> 40:
            raise corrupt(self.path, f"{name} of one of {', '.join(DTYPES)}", f"{dtype} {shape}")
        return Field("x", shape, dtype.name)
