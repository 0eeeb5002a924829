"""Format mds: MosaicML's `index.json` and shards with a table of offsets, read by its StreamingDataset.

iobench writes columns of fixed size, sorted by name, so samples are at a constant stride in each shard.
Fields whose samples differ in length are columns of `bytes`. Bools are stored as uint8, because MDS has no
bools. Existing folders may hold further columns that are not read. Fields of columns of `bytes` are named by
the caller; `png` and `jpeg` images are decoded when they are read. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.base.files import path_below
from iobench.base.options import option
from iobench.contrib.formats.shared.external import FIXED
from iobench.contrib.formats.shared.offset_shards import (
    INDEX,
    MOST_SAMPLE_BYTES,
    WORD,
    OffsetShards,
    ShardColumn,
    ragged_records,
    read_index,
    table,
)
from iobench.contrib.formats.shared.record_writer import ShardWriter, shards_bound
from iobench.contrib.formats.shared.records import Column, ImageRecords, RecordFormat, Records
from iobench.formats import Batch, Field, Index, Schema, fields_by_name

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
class Mds(RecordFormat):
    """An index and shards for mosaicml-streaming."""

    name: ClassVar[str] = "mds"
    summary: ClassVar[str] = "MosaicML's MDS shards with an index"
    library: ClassVar[str] = "numpy"
    dtypes: ClassVar[frozenset[str]] = frozenset({"bool", *NUMBERS})
    holds_ragged: ClassVar[bool] = True

    shard_bytes: int = option(
        64 << 20, "maximum bytes per shard", minimum=1, maximum=(1 << 32) - 1, unit="bytes"
    )

    def check_schema(self, schema: Schema) -> None:
        """Raise UnsupportedSchema also for samples that are too large for a shard."""
        super().check_schema(schema)
        self._refuse_large(schema, schema.sample_bytes, MOST_SAMPLE_BYTES, "a shard")

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write the shards, then the index."""
        path.mkdir()
        writer = _ShardWriter(path, schema, self.shard_bytes)
        shards = []
        for number, count in enumerate(writer.write(batches)):
            file = writer.path_of(number)
            raw = {"basename": file.name, "bytes": file.stat().st_size, "hashes": {}}
            shards.append(writer.config | {"zip_data": None, "samples": count, "raw_data": raw})
        (path / INDEX).write_text(json.dumps({"version": VERSION, "shards": shards}, sort_keys=True))

    def size_bound(self, schema: Schema) -> int:
        """Return samples plus their offsets and sizes, and the shards' descriptions."""
        head = len(_ShardWriter(Path(), schema, self.shard_bytes).description)
        return shards_bound(schema, WORD * (1 + len(schema.ragged)), self.shard_bytes, head)

    def source(self, path: Path, schema: Schema | None = None) -> MdsShards:
        """Compare the sizes of shards and index, and open the shards."""
        return MdsShards.read(path).opened()

    def sniff(self, path: Path) -> bool:
        """Return True for a folder whose index lists MDS shards."""
        try:
            shards = read_index(path / INDEX).get("shards")
        except CorruptArtifact:
            return False
        return isinstance(shards, list) and bool(shards) and _get(shards[0], "format") == "mds"

    def files(self, path: Path) -> Sequence[Path]:
        """Return the index and the shards that it lists."""
        return [path / INDEX, *MdsShards.read(path).files]


class MdsShards(OffsetShards):
    """Shards of an index: their common columns, and the hashes of each."""

    hashes: Sequence[Mapping[str, str]]

    @classmethod
    def read(cls, folder: Path) -> MdsShards:
        """Read the index of a folder.

        CorruptArtifact of kind ``invalid-index``, ``outside-folder``, or ``compressed``: a shard exists
        compressed only.
        """
        path = folder / INDEX
        shards = read_index(path).get("shards")
        if not isinstance(shards, list) or not shards:
            raise corrupt(path, "an index of MDS shards", "no shards", kind="invalid-index")
        columns = _columns_of(path, shards[0])
        files, rows, sizes, hashes = [], [], [], []
        for shard in shards:
            if _columns_of(path, shard) != columns:
                raise CorruptArtifact("its shards differ in their columns", kind="invalid-index", path=path)
            raw = shard.get("raw_data")
            samples, size = shard.get("samples"), _get(raw, "bytes")
            if type(samples) is not int or samples < 1 or type(size) is not int:
                raise corrupt(
                    path, "samples and bytes of each shard", f"{samples} and {size}", kind="invalid-index"
                )
            files.append(path_below(folder, _get(raw, "basename")))
            rows.append(samples)
            sizes.append(size)
            hashes.append(_get(raw, "hashes") if isinstance(_get(raw, "hashes"), dict) else {})
            if shard.get("compression") and not files[-1].exists():
                problem, hint = "the shard exists only in compressed form", "decompress it in the same folder"
                raise CorruptArtifact(problem, "compressed", files[-1], hint=hint)
        read = cls(path, files, rows, sizes)
        read.stored, read.hashes = columns, hashes
        return read

    def fields(self, records: Records) -> tuple[Field, ...]:
        """Return the field of each column; the shape of a column of images is that of the first image.

        CorruptArtifact of kind ``encoded-values``, ``unequal-shapes`` or ``fields-needed``.
        """
        fields = []
        for name, own in fields_by_name(self.path, self.stored).items():
            field = Field(name, (1, 1), "uint8") if self.stored[own] in IMAGES else self._known(own)
            shape = field.shape
            if self.stored[own] in IMAGES:
                shape = self._images(records, field, super().columns(records, [field])).shape(0)
            fields.append(Field(name, shape, field.dtype))
        return tuple(fields)

    def column(self, name: str, field: Field | None) -> ShardColumn:
        """Return a column, which holds a field if one is given; CorruptArtifact if it holds another."""
        encoding, encoded = self.stored[name], field is not None and self.stored[name] in IMAGES
        if field is not None:
            asked = f"column {name} as {field.dtype} {field.shape}"
            if encoded and not field.is_image:
                raise corrupt(self.path, asked, f"images, {encoding}")
            if not encoded and encoding != "bytes":
                known, dtype = self._known(name), "uint8" if field.dtype == "bool" else field.dtype
                if (known.dtype, known.shape) != (dtype, field.shape):
                    raise corrupt(self.path, asked, encoding)
        return ShardColumn(_bytes_of(encoding), field, encoded=encoded)

    def columns(
        self, records: Records, fields: Sequence[Field], thorough: bool = False
    ) -> Mapping[str, Column]:
        """Return the columns of the fields; if `thorough`, check images' shapes and the shard's hashes.

        CorruptArtifact also of kind ``other-content``. Hashes that hashlib does not have are not compared.
        """
        columns = super().columns(records, fields, thorough)
        if thorough:
            for field in fields:
                if columns[field.name].encoded:
                    self._images(records, field, columns).check(field)
            number = int(records.file[0])
            for name, expected in self.hashes[number].items():
                if name in hashlib.algorithms_guaranteed and not name.startswith("shake"):
                    actual = hashlib.new(name, self.maps[number].data, usedforsecurity=False).hexdigest()
                    if actual != expected:
                        path = records.path(0)
                        raise corrupt(path, f"{name} {expected}", actual, kind="other-content")
        return columns

    def _images(self, records: Records, field: Field, columns: Mapping[str, Column]) -> ImageRecords:
        column = columns[field.name]
        assert column.size is not None
        return ImageRecords(self.maps, records.file, column.offset, column.size, records.first, field.name)

    def _known(self, name: str) -> Field:
        """Return dtype and shape of a column; CorruptArtifact if it does not describe these."""
        known = _known_size(self.stored[name])
        if known is None:
            kind, hint = REFUSED.get(self.stored[name].partition(":")[0], OTHERWISE)
            problem = f"column {name} does not describe arrays of one shape"
            raise CorruptArtifact(problem, kind, self.path, found=f"encoding {self.stored[name]}", hint=hint)
        return known


def _get(mapping: object, key: str) -> Any:
    """Return the value of a key; None if there is none or `mapping` is not a dict."""
    return mapping.get(key) if isinstance(mapping, dict) else None


def _columns_of(path: Path, shard: object) -> dict[str, str]:
    """Return a shard's columns, name to encoding; CorruptArtifact if it is not an MDS shard."""
    version = (_get(shard, "format"), _get(shard, "version"))
    if version != ("mds", VERSION):
        raise corrupt(
            path,
            f"MDS shards of version {VERSION}",
            f"{version[0]} of version {version[1]}",
            kind="unknown-version",
        )
    names, encodings = _get(shard, "column_names"), _get(shard, "column_encodings")
    texts = [*names, *encodings] if isinstance(names, list) and isinstance(encodings, list) else [None]
    if not all(isinstance(text, str) for text in texts) or len(names) != len(encodings) or not names:
        raise corrupt(path, "a name and an encoding per column", "others", kind="invalid-index")
    columns = dict(zip(names, encodings, strict=True))
    sizes = list(map(_bytes_of, encodings))
    if len(columns) != len(names) or _get(shard, "column_sizes") != sizes:
        raise corrupt(path, f"columns of {sizes} bytes", _get(shard, "column_sizes"), kind="invalid-index")
    return columns


def _known_size(encoding: str) -> Field | None:
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


def _bytes_of(encoding: str) -> int | None:
    known = _known_size(encoding)
    return None if known is None else known.sample_bytes


def _encoding(field: Field) -> str:
    if field.is_ragged:
        return "bytes"  # an ndarray must not be empty
    dtype = "uint8" if field.dtype == "bool" else field.dtype
    return f"ndarray:{dtype}:{','.join(map(str, field.shape))}" if field.shape else dtype


class _ShardWriter(ShardWriter):
    def __init__(self, path: Path, schema: Schema, shard_bytes: int) -> None:
        self._path = path
        self.fields = sorted(schema.fields, key=lambda field: field.name)
        self.config: dict[str, Any] = {
            "version": VERSION,
            "format": "mds",
            "compression": None,
            "hashes": [],
            "size_limit": shard_bytes,
            "column_names": [field.name for field in self.fields],
            "column_encodings": [_encoding(field) for field in self.fields],
            "column_sizes": [None if field.is_ragged else field.sample_bytes for field in self.fields],
        }
        self.description = json.dumps(self.config, sort_keys=True).encode()
        super().__init__(schema, self.fields, shard_bytes, 2 * WORD + len(self.description), WORD)

    def path_of(self, number: int) -> Path:
        return self._path / f"shard.{number:05d}.mds"

    def begin(self, sizes: Index) -> bytes:
        return table(sizes, self.description)

    def records(self, batches: Iterable[Batch]) -> Iterator[bytes]:
        return ragged_records("mds", self.fields, batches)
