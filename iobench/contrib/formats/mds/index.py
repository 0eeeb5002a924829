"""Index of an MDS folder: its shards, and the encoding of each column."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.contrib.formats.shared.external import FIXED
from iobench.contrib.formats.shared.offset_shards import (
    SampleColumns,
    ShardColumn,
    inside,
    listed,
    maps_of,
    packed_images,
    read_index,
)
from iobench.contrib.formats.shared.placed_reader import Maps
from iobench.formats import Field, fields_by_name

INDEX = "index.json"
VERSION = 2
NUMBERS = "uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64".split()
# By encoding: kind and hint of the error for columns that do not describe arrays of one shape.
REFUSED = {
    "pkl": ("encoded-values", "write it as an ndarray; iobench never unpickles data"),
    "ndarray": ("unequal-shapes", f"{FIXED}, and write it as ndarray:DTYPE:SHAPE"),
    "bytes": (
        "fields-needed",
        "name the fields to read, with dtype and shape: --field 'x=float32[3,4]', or 'x=uint16[*]'",
    ),
}
IMAGES = ("png", "jpeg")
OTHERWISE = (
    "encoded-values",
    "decode it and write it as ndarray:DTYPE:SHAPE, or name the fields to read with --field",
)


@dataclass(frozen=True)
class MdsIndex:
    """Contents of an index: files, samples, bytes and hashes of the shards, and their common columns."""

    path: Path
    files: tuple[Path, ...]
    rows: tuple[int, ...]
    sizes: tuple[int, ...]
    hashes: tuple[Mapping[str, str], ...]
    columns: Mapping[str, str]  # name -> encoding, in their order

    @classmethod
    def read(cls, folder: Path) -> MdsIndex:
        """Read the index of a folder.

        CorruptArtifact of kind ``invalid-index``, ``outside-folder``, or ``compressed``: a shard exists
        compressed only.
        """
        path = folder / INDEX
        shards = read_index(path).get("shards")
        if not isinstance(shards, list) or not shards:
            raise corrupt(path, "an index of MDS shards", "no shards", kind="invalid-index")
        columns = columns_of(path, shards[0])
        files, rows, sizes, hashes = [], [], [], []
        for shard in shards:
            if columns_of(path, shard) != columns:
                raise CorruptArtifact("its shards differ in their columns", kind="invalid-index", path=path)
            raw = shard.get("raw_data")
            samples, size = shard.get("samples"), get(raw, "bytes")
            if type(samples) is not int or samples < 1 or type(size) is not int:
                raise corrupt(
                    path, "samples and bytes of each shard", f"{samples} and {size}", kind="invalid-index"
                )
            files.append(inside(folder, get(raw, "basename")))
            rows.append(samples)
            sizes.append(size)
            hashes.append(get(raw, "hashes") if isinstance(get(raw, "hashes"), dict) else {})
            if shard.get("compression") and not files[-1].exists():
                raise CorruptArtifact(
                    "the shard exists only in compressed form",
                    kind="compressed",
                    path=files[-1],
                    hint="decompress it in the same folder",
                )
        return cls(path, tuple(files), tuple(rows), tuple(sizes), tuple(hashes), columns)

    def maps(self) -> Maps:
        """Return the mapped shards; CorruptArtifact if one is missing or of another size."""
        return maps_of(self.files, self.sizes)

    def fields(self, maps: Maps) -> tuple[Field, ...]:
        """Return the field of each column; the shape of a column of images is that of the first image.

        CorruptArtifact of kind ``encoded-values``, ``unequal-shapes`` or ``fields-needed``.
        """
        names = fields_by_name(self.path, self.columns)
        return tuple(
            self._image(maps, field, name) if self.columns[name] in IMAGES else self._field(field, name)
            for field, name in names.items()
        )

    def _image(self, maps: Maps, field: str, name: str) -> Field:
        unknown = Field(field, (1, 1), "uint8")
        lists = listed(maps, self.rows[:1], self.items([unknown]))
        return Field(field, packed_images(lists, unknown).shape(maps, 0), "uint8")

    def items(self, fields: Sequence[Field]) -> SampleColumns:
        """Return a sample's layout with these fields selected; CorruptArtifact if a column is another."""
        names = fields_by_name(self.path, self.columns)
        if missing := [field.name for field in fields if field.name not in names]:
            raise corrupt(self.path, f"columns {', '.join(missing)}", ", ".join(self.columns))
        selected = {names[field.name]: field for field in fields}
        columns, heads = [], 0
        for name, encoding in self.columns.items():
            known = known_size(encoding)
            if name in selected:
                self._compare(name, selected[name])
            size = None if known is None else known.sample_bytes
            encoded = name in selected and encoding in IMAGES
            columns.append(
                ShardColumn(size, heads if size is None else None, selected.get(name), encoded=encoded)
            )
            heads += size is None
        return SampleColumns(heads, tuple(columns))

    def verify(self, maps: Maps) -> None:
        """Raise CorruptArtifact (``other-content``) if a shard has another hash than the index states."""
        for number, hashes in enumerate(self.hashes):
            for name, expected in hashes.items():
                if name in hashlib.algorithms_guaranteed and not name.startswith("shake"):
                    actual = hashlib.new(name, maps[number].data, usedforsecurity=False).hexdigest()
                    if actual != expected:
                        raise corrupt(self.files[number], f"{name} {expected}", actual, kind="other-content")

    def _field(self, field: str, name: str) -> Field:
        known = known_size(self.columns[name])
        if known is None:
            kind, hint = REFUSED.get(self.columns[name].partition(":")[0], OTHERWISE)
            raise CorruptArtifact(
                f"column {name} does not describe arrays of one shape",
                kind=kind,
                path=self.path,
                found=f"encoding {self.columns[name]}",
                hint=hint,
            )
        return Field(field, known.shape, known.dtype)

    def _compare(self, name: str, field: Field) -> None:
        encoding = self.columns[name]
        if encoding in IMAGES and not field.is_image:
            raise corrupt(self.path, f"column {name} as {field.dtype} {field.shape}", f"images, {encoding}")
        if encoding not in ("bytes", *IMAGES):
            known = self._field(field.name, name)
            dtype = "uint8" if field.dtype == "bool" else field.dtype
            if (known.dtype, known.shape) != (dtype, field.shape):
                raise corrupt(self.path, f"column {name} as {field.dtype} {field.shape}", encoding)


def get(mapping: object, key: str) -> Any:
    """Return the value of a key; None if there is none or `mapping` is not a dict."""
    return mapping.get(key) if isinstance(mapping, dict) else None


def columns_of(path: Path, shard: object) -> dict[str, str]:
    """Return a shard's columns, name to encoding; CorruptArtifact if it is not an MDS shard."""
    version = (get(shard, "format"), get(shard, "version"))
    if version != ("mds", VERSION):
        raise corrupt(
            path,
            f"MDS shards of version {VERSION}",
            f"{version[0]} of version {version[1]}",
            kind="unknown-version",
        )
    names, encodings = get(shard, "column_names"), get(shard, "column_encodings")
    texts = [*names, *encodings] if isinstance(names, list) and isinstance(encodings, list) else [None]
    if not all(isinstance(text, str) for text in texts) or len(names) != len(encodings) or not names:
        raise corrupt(path, "a name and an encoding per column", "others", kind="invalid-index")
    columns = dict(zip(names, encodings, strict=True))
    sizes = [None if (known := known_size(e)) is None else known.sample_bytes for e in encodings]
    if len(columns) != len(names) or get(shard, "column_sizes") != sizes:
        raise corrupt(path, f"columns of {sizes} bytes", get(shard, "column_sizes"), kind="invalid-index")
    return columns


def known_size(encoding: str) -> Field | None:
    """Return dtype and shape of a fixed-size encoding, under a placeholder name; None for any other."""
    kind, _, rest = encoding.partition(":")
    if encoding in NUMBERS or encoding == "int":
        return Field("x", (), "int64" if encoding == "int" else encoding)
    dtype, _, shape = rest.partition(":")
    try:
        sizes = tuple(int(size) for size in shape.split(","))
        return Field("x", sizes, dtype) if kind == "ndarray" and dtype in NUMBERS else None
    except ValueError:
        return None
