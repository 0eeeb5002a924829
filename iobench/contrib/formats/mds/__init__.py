"""Format mds: MosaicML's `index.json` and shards with a table of offsets, read by its StreamingDataset.

iobench writes only columns of fixed size, sorted by name, so samples are at a constant stride in each shard.
Bools are stored as uint8, because MDS has no bools. Existing folders may hold further columns that are not
read. Fields of columns of `bytes` are named by the caller; `png` and `jpeg` images are decoded when they are
read. Nothing is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.base.options import option
from iobench.contrib.formats.mds.index import INDEX, NUMBERS, VERSION, MdsIndex, get
from iobench.contrib.formats.shared.offset_shards import (
    MOST_SAMPLE_BYTES,
    listed,
    locations_in,
    packed_images,
    read_index,
    rows_in_shard,
    table,
)
from iobench.contrib.formats.shared.placed_reader import PlacedReader
from iobench.contrib.formats.shared.record_writer import RecordTemplate, ShardWriter
from iobench.formats import Batch, Detectable, Field, Format, Schema


@dataclass(frozen=True)
class Mds(Format, Detectable):
    """An index and shards for mosaicml-streaming."""

    name: ClassVar[str] = "mds"
    summary: ClassVar[str] = "MosaicML's MDS shards with an index, fixed columns"
    library: ClassVar[str] = "numpy"
    dtypes: ClassVar[frozenset[str]] = frozenset({"bool", *NUMBERS})

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
        writer = _MdsWriter(path, schema, self.shard_bytes)
        writer.write(batches)
        writer.write_index()

    def open(self, path: Path, schema: Schema, random: bool = False) -> PlacedReader:
        """Compare index and schema, sizes of shards and index, and return a reader."""
        index = MdsIndex.read(path)
        items = index.items(schema.fields)
        if sum(index.rows) != schema.samples:
            raise corrupt(path / INDEX, f"{schema.samples} samples", sum(index.rows))
        maps = index.maps()
        return PlacedReader(
            schema, maps, lambda load_or_build: locations_in(maps, index.rows, items, load_or_build)
        )

    def size_bound(self, schema: Schema) -> int:
        """Return samples plus their offsets and the shards' descriptions."""
        writer = _MdsWriter(Path(), schema, self.shard_bytes)
        per_shard = 4096 + 4 * len(writer.description)
        return schema.logical_bytes + 4 * schema.samples + writer.shards * per_shard + (1 << 20)

    def sniff(self, path: Path) -> bool:
        """Return True for a folder whose index lists MDS shards."""
        try:
            shards = read_index(path / INDEX).get("shards")
        except CorruptArtifact:
            return False
        return isinstance(shards, list) and bool(shards) and get(shards[0], "format") == "mds"

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of the index, or that of `fields`; checks every sample.

        Compares the shards' hashes, except those of algorithms that hashlib does not have.
        """
        index = MdsIndex.read(path)
        maps = index.maps()
        try:
            schema = Schema(sum(index.rows), tuple(fields) or index.fields(maps))
            items = index.items(schema.fields)
            lists = listed(maps, index.rows, items)
            for column in items.columns:
                if column.field is not None and column.encoded:
                    packed_images(lists, column.field).check(maps, column.field)
            index.verify(maps)
            return schema
        finally:
            maps.close()


class _MdsWriter(ShardWriter):
    """Writer of shards of fixed columns, in the order of their names."""

    def __init__(self, path: Path, schema: Schema, shard_bytes: int) -> None:
        fields = sorted(schema.fields, key=lambda field: field.name)
        self._path = path
        self._config = {
            "version": VERSION,
            "format": "mds",
            "compression": None,
            "hashes": [],
            "size_limit": shard_bytes,
            "column_names": [field.name for field in fields],
            "column_encodings": [_encoding(field) for field in fields],
            "column_sizes": [field.sample_bytes for field in fields],
        }
        self.description = json.dumps(self._config, sort_keys=True).encode()
        record = RecordTemplate.of(fields)
        rows = rows_in_shard(shard_bytes, len(record.pattern), 8 + len(self.description))
        super().__init__(schema, record, rows)

    def path_of(self, number: int) -> Path:
        return self._path / f"shard.{number:05d}.mds"

    def begin(self, number: int) -> bytes:
        return table(self.rows_of(number), len(self.record.pattern), self.description)

    def write_index(self) -> None:
        """Write the index of the shards."""
        shards = [self._config | {"zip_data": None} | self._entry(number) for number in range(self.shards)]
        index = {"version": VERSION, "shards": shards}
        (self._path / INDEX).write_text(json.dumps(index, sort_keys=True))

    def _entry(self, number: int) -> dict[str, Any]:
        file = self.path_of(number)
        raw = {"basename": file.name, "bytes": file.stat().st_size, "hashes": {}}
        return {"samples": self.rows_of(number), "raw_data": raw}


def _encoding(field: Field) -> str:
    """Return the encoding of the column of a field."""
    dtype = "uint8" if field.dtype == "bool" else field.dtype
    return f"ndarray:{dtype}:{','.join(map(str, field.shape))}" if field.shape else dtype
