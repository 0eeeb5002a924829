"""Format zarr: a Zarr 3 group with one array per field, chunked along the samples.

Each chunk is one file, or several chunks form a shard with an index at its end. Groups and arrays of
version 2 can be read as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from iobench.base.finding import Finding
from iobench.base.options import option
from iobench.contrib.formats.shared.chunks import fill_arrays
from iobench.formats import (
    ArrayFormat,
    Batch,
    Detectable,
    Field,
    Groups,
    Reader,
    Schema,
    StoredArray,
    split_selection,
    stored_arrays,
)

METADATA = ("zarr.json", ".zgroup", ".zarray")


@dataclass(frozen=True)
class Zarr(ArrayFormat, Detectable):
    """A Zarr group with one array per field."""

    name: ClassVar[str] = "zarr"
    summary: ClassVar[str] = "a Zarr 3 group, one array per field, chunks as files or in shards"
    library: ClassVar[str] = "zarr"
    modules: ClassVar[tuple[str, ...]] = ("zarr",)
    survives_unlink: ClassVar[bool] = False
    selectable: ClassVar[bool] = True

    chunk_bytes: int = option(1 << 20, "bytes per chunk of whole samples", minimum=1)
    shard_bytes: int = option(0, "bytes per shard of whole chunks; 0 stores one file per chunk", minimum=0)
    codec: str | None = option(None, "compression of chunks", choices=(None, "zstd", "blosc"))

    @property
    def libraries(self) -> tuple[str, ...]:
        """Zarr, and numcodecs, which decompresses the chunks."""
        return (self.library, "numcodecs")

    def write_arrays(self, path: Path, arrays: Collection[StoredArray], batches: Iterable[Batch]) -> None:
        """Write the group, one whole chunk or shard at a time."""
        import zarr
        from zarr.codecs import BloscCodec, ZstdCodec

        from iobench.contrib.formats.zarr.reader import OURS

        codecs = {None: None, "zstd": ZstdCodec(level=1), "blosc": BloscCodec(cname="lz4", clevel=5)}
        group = zarr.open_group(path, mode="w", zarr_format=3, attributes={OURS: 1})
        opened, rows = dict[str, Any](), dict[str, int]()
        for array in arrays:
            chunk, shard = self._rows(array)
            opened[array.name] = group.create_array(
                array.name,
                shape=array.shape,
                dtype=array.row.dtype,
                chunks=(chunk, *array.row.shape),
                shards=(shard, *array.row.shape) if self.shard_bytes else None,
                compressors=codecs[self.codec],
                config={"write_empty_chunks": True, "order": "C"},  # so that a missing chunk is damage
            )
            rows[array.name] = shard
        fill_arrays(opened, rows, batches)

    def open_arrays(self, path: Path, schema: Schema, random: bool = False) -> Reader:
        """Check the metadata, and the files of all chunks that `write` stored, and return a reader."""
        from iobench.contrib.formats.zarr.reader import ZarrReader

        return ZarrReader(path, schema)

    def sniff(self, path: Path) -> bool:
        """Return True for a folder with Zarr metadata."""
        return any((path / name).is_file() for name in METADATA)

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of an array, or of all in a group and its subgroups, or of those after `::`."""
        from iobench.contrib.formats.zarr.reader import infer_schema_of

        path, chosen = split_selection(path)
        return infer_schema_of(path, fields, chosen)

    def groups(self, path: Path) -> Groups:
        """Return the groups below a group that hold alike arrays."""
        from iobench.contrib.formats.zarr.reader import open_arrays

        return Groups.of({name: (one.shape, one.dtype.name) for name, one in open_arrays(path)[0].items()})

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Report the chunks that are not stored, which may be intended or a loss, and arrays left out."""
        from iobench.contrib.formats.zarr.reader import not_read

        path, chosen = split_selection(path)
        return not_read(path, schema, chosen)

    def size_bound(self, schema: Schema) -> int:
        """Return logical bytes, a whole last shard and chunk per field, and the overhead of chunks."""
        bound = super().size_bound(schema)
        for array in stored_arrays(schema):
            (chunk, shard), row_bytes = self._rows(array), array.row.sample_bytes
            chunks = array.length // chunk + 1 + shard // chunk
            # a file's last block, its folder, an index entry, a codec's overhead on noise
            bound += shard * row_bytes + (64 << 10)
            bound += chunks * (64 + chunk * row_bytes // 200) + (array.length // shard + 1) * 8192
        return bound

    def _rows(self, array: StoredArray) -> tuple[int, int]:
        """Return the rows per chunk and per shard; without shards, the former twice."""
        chunk = min(array.length, max(1, self.chunk_bytes // array.row.sample_bytes))
        chunks = min(-(-array.length // chunk), max(1, self.shard_bytes // (chunk * array.row.sample_bytes)))
        return chunk, chunk * chunks
