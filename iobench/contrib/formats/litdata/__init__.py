"""Format litdata: `index.json` and chunks with a table of offsets, as litdata's PyTreeLoader reads them.

iobench writes one dict per sample, whose leaves are NumPy arrays with litdata's header (dtype and shape),
so samples of one shape are at a constant stride in each chunk. Existing folders may also hold tensors,
numbers, and bytes. The caller names the fields of bytes, and those whose samples differ in length. Nothing is
unpickled. Chunks for litdata's TokensLoader are read in windows, see `token_chunks`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.base.finding import Finding
from iobench.base.options import option
from iobench.contrib.formats.litdata.chunk_index import INDEX, LOADER, WORD, ChunkIndex
from iobench.contrib.formats.litdata.leaves import NUMPY, header_of
from iobench.contrib.formats.litdata.token_chunks import TokenChunks
from iobench.contrib.formats.shared.external import totals_of
from iobench.contrib.formats.shared.offset_shards import (
    MOST_SAMPLE_BYTES,
    listed,
    locations_in,
    read_index,
)
from iobench.contrib.formats.shared.offset_shards_writer import (
    ragged_records,
    rows_in_shard,
    table,
    write_ragged_shards,
)
from iobench.contrib.formats.shared.placed_reader import PlacedReader
from iobench.contrib.formats.shared.record_writer import RecordTemplate, ShardWriter
from iobench.contrib.formats.shared.token_windows import WINDOW
from iobench.formats import Batch, Detectable, Field, Format, Schema


@dataclass(frozen=True)
class LitData(Format, Detectable):
    """An index and chunks for litdata's StreamingDataset."""

    name: ClassVar[str] = "litdata"
    summary: ClassVar[str] = "LitData chunks with an index, one array per field"
    library: ClassVar[str] = "numpy"
    dtypes: ClassVar[frozenset[str]] = frozenset(NUMPY) - {"complex64", "complex128"}
    holds_ragged: ClassVar[bool] = True

    chunk_bytes: int = option(
        64 << 20, "maximum bytes per chunk", minimum=1, maximum=(1 << 32) - 1, unit="bytes"
    )
    window: int = option(WINDOW, "tokens per sample of existing chunks for TokensLoader", minimum=2)

    def check_schema(self, schema: Schema) -> None:
        """Raise UnsupportedSchema also for samples that are too large for a chunk."""
        super().check_schema(schema)
        self._refuse_large(schema, schema.sample_bytes, MOST_SAMPLE_BYTES, "a chunk")

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write the chunks, then the index."""
        path.mkdir()
        writer = _ChunkWriter(path, schema, self.chunk_bytes)
        if schema.ragged:
            records = ragged_records(self.name, schema.fields, batches, header_of)
            rows = write_ragged_shards(writer.path_of, records, self.chunk_bytes)
        else:
            writer.write(batches)
            rows = [writer.rows_of(number) for number in range(writer.shards)]
        writer.write_index(rows)

    def open(self, path: Path, schema: Schema, random: bool = False) -> PlacedReader:
        """Compare index and schema, sizes of chunks and index, and return a reader."""
        if chunks := TokenChunks.read(path):
            return chunks.open(schema)
        index = ChunkIndex.read(path)
        if sum(index.rows) != schema.samples:
            raise corrupt(path / INDEX, f"{schema.samples} samples", sum(index.rows))
        maps = index.maps()
        items = index.items(schema.fields)
        return PlacedReader(
            schema,
            maps,
            lambda load_or_build: locations_in(maps, index.rows, items, load_or_build),
        )

    def size_bound(self, schema: Schema) -> int:
        """Return the samples with their headers plus the chunks' tables."""
        heads = WORD + sum(WORD + len(header_of(field)) for field in schema.fields)
        total = schema.logical_bytes + schema.samples * heads
        return total + min(schema.samples, 1 + 2 * total // self.chunk_bytes) * 8192 + (1 << 20)

    def sniff(self, path: Path) -> bool:
        """Return True for a folder whose index lists chunks."""
        try:
            index = read_index(path / INDEX)
        except CorruptArtifact:
            return False
        return isinstance(index.get("chunks"), list) and isinstance(index.get("config"), dict)

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of index and first sample, or that of `fields`; checks every sample."""
        if chunks := TokenChunks.read(path):
            return chunks.schema(self.window)
        index = ChunkIndex.read(path)
        with closing(index.maps()) as maps:
            known = tuple(fields) or index.fields(maps)
            items = index.items(known)
            lists = listed(maps, index.rows, items)
            return Schema(sum(index.rows), known, totals=totals_of(lists, known))

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Return the tokens that are in no window, of chunks for TokensLoader."""
        chunks = TokenChunks.read(path)
        return chunks.notes(self.window) if chunks else []


class _ChunkWriter(ShardWriter):
    """Writer of chunks: per sample the size of each leaf, then the leaves, each with its header."""

    def __init__(self, path: Path, schema: Schema, chunk_bytes: int) -> None:
        self._path, self._chunk_bytes = path, chunk_bytes
        parts: list[bytes | Field] = []
        for field in schema.fields:
            parts += [header_of(field), field]
        sizes = [len(header_of(field)) + field.sample_bytes for field in schema.fields]
        record = RecordTemplate.of(
            [struct.pack(f"<{len(sizes)}I", *(size & 0xFFFFFFFF for size in sizes)), *parts]
        )
        super().__init__(schema, record, rows_in_shard(chunk_bytes, len(record.pattern), 2 * WORD))

    def path_of(self, number: int) -> Path:
        return self._path / f"chunk-0-{number}.bin"

    def begin(self, number: int) -> bytes:
        return table(np.full(self.rows_of(number), len(self.record.pattern)))

    def write_index(self, rows: Sequence[int]) -> None:
        """Write the index: the chunks, with the samples of each, and the description of a sample."""
        leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
        names = [field.name for field in self.schema.fields]
        spec = {"type": "builtins.dict", "context": json.dumps(names), "children_spec": [leaf] * len(names)}
        config = {
            "chunk_bytes": self._chunk_bytes,
            "chunk_size": None,
            "compression": None,
            "data_format": ["numpy"] * len(names),
            "data_spec": json.dumps([1, spec]),
            "encryption": None,
            "item_loader": LOADER,
        }
        chunks = [self._entry(number, count) for number, count in enumerate(rows)]
        (self._path / INDEX).write_text(json.dumps({"chunks": chunks, "config": config}, sort_keys=True))

    def _entry(self, number: int, samples: int) -> dict[str, Any]:
        file = self.path_of(number)
        return {
            "chunk_bytes": file.stat().st_size,
            "chunk_size": samples,
            "dim": None,
            "filename": file.name,
        }
