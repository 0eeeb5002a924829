"""Parser of FFCV's beton: its header, field descriptions and table of arrays."""

from __future__ import annotations

import json
import re
import struct
import unicodedata
from collections.abc import Mapping
from typing import Any

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt, expecting
from iobench.contrib.formats.shared.placed_reader import Maps
from iobench.formats import (
    DTYPES,
    Array,
    Field,
    Index,
    Listed,
    Placement,
    Schema,
    Strided,
    fields_by_name,
    names_within,
)

HEADER = struct.Struct("<HHIQQ")  # version, fields, bytes of a page, samples, offset of the table
VERSION = 2
DESCRIPTION = struct.Struct("<B16s1024s")  # type, name, arguments
FLOAT, INT, RGB_IMAGE, BYTES, NDARRAY, JSON_TEXT, TENSOR = range(7)
POINTED: list[tuple[str, str]] = [("offset", "<u8"), ("bytes", "<u8")]
METADATA: dict[int, np.dtype[Any]] = {  # by field type: a sample's entry in the metadata
    FLOAT: np.dtype("<f8"),
    INT: np.dtype("<i8"),
    RGB_IMAGE: np.dtype([("mode", "<u1"), ("width", "<u2"), ("height", "<u2"), ("offset", "<u8")]),
    BYTES: np.dtype(POINTED),
    NDARRAY: np.dtype("<u8"),
    JSON_TEXT: np.dtype(POINTED),
    TENSOR: np.dtype("<u8"),
}
SCALARS = {"float64": FLOAT, "int64": INT}
SHAPE = struct.Struct("<32QQ")  # sizes, zeros after the last; length of the dtype's description
WORD = 8
MOST_NAME = 15  # FFCV truncates longer names, and decodes them as ASCII
MOST_STEM = 9  # of a similar name: a number of up to five digits may follow, for the most fields of a file
ENTRY = np.dtype([("sample", "<u8"), ("offset", "<u8"), ("bytes", "<u8")])


def is_word(field: Field) -> bool:
    """Return True if a field's values are stored in the metadata, not as arrays."""
    return not field.shape and field.dtype in SCALARS


def stored_name(name: str) -> str:
    """Return a similar name that FFCV reads: the name itself if it does."""
    if name.isascii() and len(name) <= MOST_NAME:
        return name
    letters = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub("_+", "_", letters).strip("_")[:MOST_STEM] or "f"


class Beton:
    """Parsed description of a file.

    CorruptArtifact if it is no beton of version 2, is truncated, or (``unsupported-type``) has a custom type.
    """

    def __init__(self, maps: Maps) -> None:
        self.path, self._stored = maps.files[0], maps[0]
        start = self._stored[: HEADER.size].tobytes().ljust(HEADER.size, b"\0")
        version, count, _, self.samples, self._table = HEADER.unpack(start)
        self._front = HEADER.size + count * DESCRIPTION.size
        if version != VERSION or not count or not self.samples or self._front > len(self._stored):
            raise corrupt(self.path, f"a beton of version {VERSION}", "another or a truncated file")
        self.fields: dict[str, Field | None] = {}  # None for a field that is neither an array nor a scalar
        kinds = []
        for number in range(count):
            at = HEADER.size + number * DESCRIPTION.size
            kind, name, arguments = DESCRIPTION.unpack(self._stored[at : at + DESCRIPTION.size].tobytes())
            text = name.partition(b"\0")[0].decode("ascii", "replace")
            if text in self.fields or not text:
                raise corrupt(self.path, "distinct field names", repr(text))
            if kind not in METADATA:
                raise CorruptArtifact(
                    f"field {text} has a custom type",
                    kind="unsupported-type",
                    path=self.path,
                    expected=f"one of FFCV's own types, 0 to {max(METADATA)}",
                    found=kind,
                )
            self.fields[text] = self._field(kind, text, arguments)
            kinds.append(("", METADATA[kind]))
        self._row = np.dtype(kinds, align=True)
        self._end = self._front + self.samples * self._row.itemsize
        if self._end > len(self._stored):
            raise corrupt(self.path, f"{self.samples} samples", f"{len(self._stored)} bytes")

    def known(self) -> tuple[Field, ...]:
        """Return all fields; CorruptArtifact (``encoded-values``) if one is neither array nor scalar."""
        names = fields_by_name(self.path, self.fields)
        return tuple(Field(name, *self._shape(original)) for name, original in names.items())

    def placement(self, schema: Schema) -> Mapping[str, Placement]:
        """Return the location of each field.

        CorruptArtifact if a field is missing or of another dtype or shape, or an offset contradicts the table
        of arrays.
        """
        names = list(self.fields)
        by_field = names_within(names, schema.fields, stored_name)
        front = self._stored[self._front : self._end].view(self._row)
        located: dict[str, Placement] = {}
        for field in schema.fields:
            if by_field.get(field.name) not in names:
                raise corrupt(self.path, f"field {field.name}", ", ".join(names))
            shape, dtype = self._shape(by_field[field.name])
            if (shape, dtype) not in ((field.shape, field.dtype), (field.shape or (1,), field.dtype)):
                raise corrupt(self.path, f"{field.name} as {field.dtype} {field.shape}", f"{dtype} {shape}")
            part = f"f{names.index(by_field[field.name])}"
            if is_word(field) and not shape:
                at = self._front + self._at(part)
                located[field.name] = Strided((self.path,), at, self._row.itemsize)
            else:
                offsets = front[part].astype(np.int64)
                self._check(field, offsets)
                file = np.broadcast_to(np.int64(0), offsets.shape)
                located[field.name] = Listed((self.path,), file, offsets)
        self._arrays()
        return located

    def _at(self, part: str) -> int:
        """Return the offset of a field's value or array offset in a sample's metadata."""
        parts = self._row.fields
        assert parts is not None
        return int(parts[part][1])

    def _shape(self, name: str) -> tuple[tuple[int, ...], str]:
        known = self.fields[name]
        if known is None:
            raise CorruptArtifact(
                f"field {name} is neither an array nor a scalar of one size",
                kind="encoded-values",
                path=self.path,
                hint="write it as an NDArrayField, padded or cropped to one shape",
            )
        return known.shape, known.dtype

    def _check(self, field: Field, offsets: Index) -> None:
        """Raise CorruptArtifact if an array is missing in the table or has another size there."""
        table = self._arrays()
        at = np.minimum(np.searchsorted(table["offset"], offsets.view(np.uint64)), len(table) - 1)
        wrong = (table["offset"][at] != offsets.view(np.uint64)) | (table["bytes"][at] != field.sample_bytes)
        if wrong.any():
            row = int(wrong.argmax())
            raise corrupt(
                self.path, f"{field.name} of sample {row} in the table of arrays", "another offset or size"
            )

    def _arrays(self) -> Array:
        """Return the table sorted by offset; CorruptArtifact if it is truncated or arrays overlap."""
        held = len(self._stored) - self._table
        if self._table < self._end or held < 0 or held % ENTRY.itemsize:
            raise corrupt(self.path, "a table of arrays at the end", f"{held} bytes")
        table = np.sort(self._stored[self._table :].view(ENTRY), order="offset")
        if len(table):
            ends = table["offset"] + table["bytes"]
            if (
                table["offset"][0] < self._end
                or ends[-1] > self._table
                or (ends[:-1] > table["offset"][1:]).any()
            ):
                raise corrupt(self.path, "separate arrays between metadata and table", "overlapping ones")
        elif any(known is None or not is_word(known) for known in self.fields.values()):
            raise corrupt(self.path, "a table of arrays at the end", "none")
        return table

    def _field(self, kind: int, name: str, arguments: bytes) -> Field | None:
        """Return dtype and shape of a described field, under a placeholder name; None for other types."""
        if kind in (FLOAT, INT):
            return Field("x", (), "float64" if kind == FLOAT else "int64")
        if kind not in (NDARRAY, TENSOR):
            return None
        *sizes, length = SHAPE.unpack_from(arguments)
        shape = tuple(size for size in sizes if size)
        with expecting(self.path, f"the dtype of {name}", (ValueError, TypeError, RecursionError)):
            ((_, text),) = json.loads(arguments[SHAPE.size : SHAPE.size + length])
            dtype = np.dtype(text)
        if dtype.name not in DTYPES or not dtype.isnative or not shape or max(shape) >> 40:
            raise corrupt(self.path, f"{name} of dtype {', '.join(DTYPES)}", f"{dtype} {shape}")
        return Field("x", shape, dtype.name)
