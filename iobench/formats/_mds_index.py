"""The index of an MDS folder: which shards there are, and what each column of a sample is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iobench.base.errors import (
    CorruptArtifact,
    corrupt,
)
from iobench.formats._external import FIXED, fields_by_name
from iobench.formats._offset_shards import (
    SampleColumns,
    ShardColumn,
    inside,
    listed,
    packed_images,
    read_index,
)
from iobench.formats._placed_reader import Maps
from iobench.formats._schema import Field

INDEX = "index.json"
VERSION = 2
NUMBERS = "uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64".split()
ADVICE = {
    "pkl": "pickled, and nothing is unpickled here; write it again as an ndarray",
    "ndarray": f"of any shape in each sample; {FIXED}, and write it as ndarray:DTYPE:SHAPE",
    "bytes": "bytes, which do not say what they are; name the fields to take, with dtype and shape",
}
IMAGES = ("png", "jpeg")
OTHERWISE = (
    "encoded, not an array of one shape; decode it and write it as ndarray:DTYPE:SHAPE, or name the fields"
)


@dataclass(frozen=True)
class MdsIndex:
    """What an index says: files, samples, bytes and hashes of the shards, and the columns of all."""

    path: Path
    files: tuple[Path, ...]
    rows: tuple[int, ...]
    sizes: tuple[int, ...]
    hashes: tuple[Mapping[str, str], ...]
    columns: Mapping[str, str]  # name -> encoding, in their order

    @classmethod
    def read(cls, folder: Path) -> MdsIndex:
        """The index of a folder; CorruptArtifact where it is none, or its shards are not alike."""
        path = folder / INDEX
        shards = read_index(path).get("shards")
        if not isinstance(shards, list) or not shards:
            raise corrupt(path, "an index of MDS shards", "no shards")
        columns = columns_of(path, shards[0])
        files, rows, sizes, hashes = [], [], [], []
        for shard in shards:
            if columns_of(path, shard) != columns:
                raise CorruptArtifact(f"{path}: its shards differ in their columns")
            raw = shard.get("raw_data")
            samples, size = shard.get("samples"), get(raw, "bytes")
            if type(samples) is not int or samples < 1 or type(size) is not int:
                raise corrupt(path, "samples and bytes of each shard", f"{samples} and {size}")
            files.append(inside(folder, get(raw, "basename")))
            rows.append(samples)
            sizes.append(size)
            hashes.append(get(raw, "hashes") if isinstance(get(raw, "hashes"), dict) else {})
            if shard.get("compression") and not files[-1].exists():
                raise CorruptArtifact(
                    f"{files[-1]}: the shard is there compressed only; decompress it beside"
                )
        return cls(path, tuple(files), tuple(rows), tuple(sizes), tuple(hashes), columns)

    def maps(self) -> Maps:
        """The shards, after their sizes were compared."""
        for file, size in zip(self.files, self.sizes, strict=True):
            found = file.stat().st_size if file.is_file() else "no such file"
            if found != size:
                raise corrupt(file, f"{size} bytes", found)
        return Maps(self.files)

    def fields(self, maps: Maps) -> tuple[Field, ...]:
        """Every column as a field; CorruptArtifact names the first that holds no array of one shape.

        The first image says of which shape those of its column are.
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
        """What a sample consists of, these fields being taken; CorruptArtifact where a column is another."""
        names = fields_by_name(self.path, self.columns)
        if missing := [field.name for field in fields if field.name not in names]:
            raise corrupt(self.path, f"columns {', '.join(missing)}", ", ".join(self.columns))
        taken = {names[field.name]: field for field in fields}
        columns, heads = [], 0
        for name, encoding in self.columns.items():
            known = known_size(encoding)
            if name in taken:
                self._compare(name, taken[name])
            size = None if known is None else known.sample_bytes
            encoded = name in taken and encoding in IMAGES
            columns.append(
                ShardColumn(size, heads if size is None else None, taken.get(name), encoded=encoded)
            )
            heads += size is None
        return SampleColumns(heads, tuple(columns))

    def verify(self, maps: Maps) -> None:
        """CorruptArtifact where a shard has not the hash that the index gives."""
        for number, hashes in enumerate(self.hashes):
            for kind, said in hashes.items():
                if kind in hashlib.algorithms_guaranteed and not kind.startswith("shake"):
                    found = hashlib.new(kind, maps[number].data, usedforsecurity=False).hexdigest()
                    if found != said:
                        raise corrupt(self.files[number], f"{kind} {said}", found)

    def _field(self, field: str, name: str) -> Field:
        known = known_size(self.columns[name])
        if known is None:
            kind = self.columns[name].partition(":")[0]
            raise CorruptArtifact(
                f"{self.path}: column {name} is {self.columns[name]}: {ADVICE.get(kind, OTHERWISE)}"
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
    return mapping.get(key) if isinstance(mapping, dict) else None


def columns_of(path: Path, shard: object) -> dict[str, str]:
    """The columns of a shard: name and encoding; CorruptArtifact where it is no MDS shard."""
    kind = (get(shard, "format"), get(shard, "version"))
    if kind != ("mds", VERSION):
        raise corrupt(path, f"MDS shards of version {VERSION}", f"{kind[0]} of version {kind[1]}")
    names, encodings = get(shard, "column_names"), get(shard, "column_encodings")
    texts = [*names, *encodings] if isinstance(names, list) and isinstance(encodings, list) else [None]
    if not all(isinstance(text, str) for text in texts) or len(names) != len(encodings) or not names:
        raise corrupt(path, "columns with a name and an encoding each", "others")
    found = dict(zip(names, encodings, strict=True))
    sizes = [None if (known := known_size(e)) is None else known.sample_bytes for e in encodings]
    if len(found) != len(names) or get(shard, "column_sizes") != sizes:
        raise corrupt(path, f"columns of {sizes} bytes", get(shard, "column_sizes"))
    return found


def known_size(encoding: str) -> Field | None:
    """Dtype and shape of an encoding of one size, as a field; None for any other."""
    kind, _, rest = encoding.partition(":")
    if encoding in NUMBERS or encoding == "int":
        return Field("x", (), "int64" if encoding == "int" else encoding)
    dtype, _, shape = rest.partition(":")
    try:
        sizes = tuple(int(size) for size in shape.split(","))
        return Field("x", sizes, dtype) if kind == "ndarray" and dtype in NUMBERS else None
    except ValueError:
        return None
