"""Parser of FFCV's beton: its header, descriptions of its fields, and their metadata."""

from __future__ import annotations

import json
import re
import struct
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt, expecting
from iobench.contrib.formats.ffcv.images import shape_at, unequal, unequal_shapes
from iobench.contrib.formats.shared.external import as_options
from iobench.contrib.formats.shared.placed_reader import Maps
from iobench.formats import DTYPES, VARIES, Array, Field, fields_by_name, names_within

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
MOST_NAME = 15  # FFCV truncates longer names, and decodes them as ASCII
MOST_STEM = 9  # of a similar name: a number of up to five digits may follow, for the most fields of a file
KNOWN = {
    FLOAT: Field("x", (), "float64"),
    INT: Field("x", (), "int64"),
    BYTES: Field("x", (VARIES,), "uint8"),
}
ENTRY = np.dtype([("sample", "<u8"), ("offset", "<u8"), ("bytes", "<u8")])


def is_word(field: Field) -> bool:
    """Return True if a field's values are stored in the metadata, not as arrays."""
    return not field.shape and field.dtype in SCALARS


def row_of(kinds: Iterable[int]) -> np.dtype[Any]:
    """Return the dtype of a sample's metadata, for fields of these types: `f0`, `f1` and so on."""
    return np.dtype([("", METADATA[kind]) for kind in kinds], align=True)


def stored_name(name: str) -> str:
    """Return a similar name that FFCV reads: the name itself if it does."""
    if name.isascii() and len(name) <= MOST_NAME:
        return name
    letters = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub("_+", "_", letters).strip("_")[:MOST_STEM] or "f"


@dataclass(frozen=True, eq=False)
class Column:
    """A field of a file, as the file describes it, with its metadata of all samples."""

    name: str
    kind: int
    field: Field | None  # dtype and shape, under a placeholder name; None for images and JSON
    at: int  # offset of the first sample's metadata
    metadata: Array
    number: int | None  # among a sample's arrays; None if the metadata hold the values

    @property
    def offsets(self) -> Array:
        """Offset of each sample's array."""
        return self.metadata if self.metadata.dtype.names is None else self.metadata["offset"]

    def as_field(self, name: str, scaled_shape: tuple[int, ...] | None) -> Field | None:
        """Return the field of this name that it holds; None for JSON, and for images of several shapes."""
        if self.kind != RGB_IMAGE:
            return self.field and replace(self.field, name=name)
        if scaled_shape is None and unequal(self.metadata) is not None:
            return None
        return Field(name, scaled_shape or shape_at(self.metadata, 0), "uint8")

    def holds(self, field: Field) -> bool:
        """Return whether it may hold a field: a scalar is stored as itself, or as shape (1,)."""
        if self.field is None or self.kind == BYTES:
            return True  # as many bytes as each sample has, or pixels
        known = self.field.shape, self.field.dtype
        return known in ((field.shape, field.dtype), (field.shape or (1,), field.dtype))


class Beton:
    """Parsed description of a file.

    CorruptArtifact if it is no beton of version 2, is truncated, or (``unsupported-type``) has a custom type.
    """

    def __init__(self, maps: Maps) -> None:
        self.path, self.stored = maps.files[0], maps[0]
        start = self.stored[: HEADER.size].tobytes().ljust(HEADER.size, b"\0")
        version, count, _, self.samples, self.table = HEADER.unpack(start)
        front = HEADER.size + count * DESCRIPTION.size
        if version != VERSION or not count or not self.samples or front > len(self.stored):
            raise corrupt(self.path, f"a beton of version {VERSION}", "another or a truncated file")
        described = [self._described(number) for number in range(count)]
        names = [name for name, _, _ in described]
        if len(set(names)) != count or "" in names:
            raise corrupt(self.path, "distinct field names", ", ".join(map(repr, names)))
        row = row_of([kind for _, kind, _ in described])
        self.end = front + self.samples * row.itemsize  # of the metadata
        if self.end > len(self.stored):
            raise corrupt(self.path, f"{self.samples} samples", f"{len(self.stored)} bytes")
        self.stride = row.itemsize
        parts: Mapping[str, tuple[Any, ...]] = row.fields or {}
        metadata = self.stored[front : self.end].view(row)
        self.columns: dict[str, Column] = {}
        self.arrays = 0  # per sample
        for part, (name, kind, field) in zip(parts, described, strict=True):
            number = None if kind in (FLOAT, INT) else self.arrays
            self.arrays += number is not None
            at = front + int(parts[part][1])
            self.columns[name] = Column(name, kind, field, at, metadata[part], number)

    def known(self, scaled_shape: tuple[int, ...] | None) -> tuple[Field, ...]:
        """Return all fields, images with `scaled_shape` if it is given.

        CorruptArtifact of kind ``encoded-values`` for JSON, ``unequal-shapes`` for images of several sizes.
        """
        names = fields_by_name(self.path, self.columns)
        fields = {name: self.columns[own].as_field(name, scaled_shape) for name, own in names.items()}
        known = tuple(field for field in fields.values() if field is not None)
        if len(known) == len(fields):
            return known
        stored = as_options(field or Field(name, (VARIES,), "uint8") for name, field in fields.items())
        name = next(name for name, field in fields.items() if field is None)
        metadata = self.columns[names[name]].metadata
        if self.columns[names[name]].kind == RGB_IMAGE:
            raise unequal_shapes(self.path, name, metadata, unequal(metadata) or 0, stored)
        raise CorruptArtifact(
            f"field {name} does not describe dtype and shape",
            kind="encoded-values",
            path=self.path,
            found="JSON",
            hint=f"read its bytes, not decoded: {stored}",
        )

    def selected(self, fields: Sequence[Field]) -> list[Column]:
        """Return the column of each field; CorruptArtifact if one is missing or holds another."""
        names = names_within(self.columns, fields, stored_name)
        columns = []
        for field in fields:
            column = self.columns.get(names[field.name])
            if column is None:
                raise corrupt(self.path, f"field {field.name}", ", ".join(self.columns))
            if column.field is not None and not column.holds(field):
                raise corrupt(self.path, field.typed, replace(column.field, name=field.name).typed)
            columns.append(column)
        return columns

    def _described(self, number: int) -> tuple[str, int, Field | None]:
        """Return name, type, and dtype and shape of a field."""
        at = HEADER.size + number * DESCRIPTION.size
        kind, stored, arguments = DESCRIPTION.unpack(self.stored[at : at + DESCRIPTION.size].tobytes())
        name = stored.partition(b"\0")[0].decode("ascii", "replace")
        if kind not in METADATA:
            raise CorruptArtifact(
                f"field {name} has a custom type",
                kind="unsupported-type",
                path=self.path,
                expected=f"one of FFCV's own types, 0 to {max(METADATA)}",
                found=kind,
            )
        if kind in (NDARRAY, TENSOR):
            return name, kind, self._array(name, arguments)
        return name, kind, KNOWN.get(kind)

    def _array(self, name: str, arguments: bytes) -> Field:
        *sizes, length = SHAPE.unpack_from(arguments)
        shape = tuple(size for size in sizes if size)
        with expecting(self.path, f"the dtype of {name}", (ValueError, TypeError, RecursionError)):
            ((_, text),) = json.loads(arguments[SHAPE.size : SHAPE.size + length])
            dtype = np.dtype(text)
        if dtype.name not in DTYPES or not dtype.isnative or not shape or max(shape) >> 40:
            raise corrupt(self.path, f"{name} of dtype {', '.join(DTYPES)}", f"{dtype} {shape}")
        return Field("x", shape, dtype.name)
