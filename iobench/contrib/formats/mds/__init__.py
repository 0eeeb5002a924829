"""Format mds: MosaicML's `index.json` and shards with a table of offsets, read by its StreamingDataset.

iobench writes columns of fixed size, sorted by name, so samples are at a constant stride in each shard.
Fields whose samples differ in length are columns of `bytes`. Bools are stored as uint8, because MDS has no
bools. Existing folders may hold further columns that are not read. Fields of columns of `bytes` are named by
the caller; `png` and `jpeg` images are decoded when they are read. Nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.base.options import option
from iobench.contrib.formats.mds.index import INDEX, NUMBERS, MdsIndex, get
from iobench.contrib.formats.mds.writer import most_bytes, write_shards
from iobench.contrib.formats.shared.external import totals_of
from iobench.contrib.formats.shared.offset_shards import (
    MOST_SAMPLE_BYTES,
    listed,
    locations_in,
    packed_images,
    read_index,
)
from iobench.contrib.formats.shared.placed_reader import PlacedReader
from iobench.formats import Batch, Detectable, Field, Format, Schema


@dataclass(frozen=True)
class Mds(Format, Detectable):
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
        write_shards(path, schema, batches, self.shard_bytes)

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
        """Return samples plus their offsets and sizes, and the shards' descriptions."""
        return most_bytes(schema, self.shard_bytes)

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
        with closing(index.maps()) as maps:
            known = tuple(fields) or index.fields(maps)
            items = index.items(known)
            lists = listed(maps, index.rows, items)
            schema = Schema(sum(index.rows), known, totals=totals_of(lists, known))
            for column in items.columns:
                if column.field is not None and column.encoded:
                    packed_images(lists, column.field).check(maps, column.field)
            index.verify(maps)
            return schema
