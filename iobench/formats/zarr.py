"""Zarr, version 3: a group with one array per field, chunked along the samples.

Each chunk is a file of its own, or several are a shard, which has their index at its end. Groups and
arrays of version 2 are read as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from iobench.formats._format import Format
from iobench.formats._options import option
from iobench.formats._rebatch import Slab
from iobench.formats._schema import Batch, Field, Schema

if TYPE_CHECKING:
    from iobench.formats._zarr_reader import ZarrReader

METADATA = ("zarr.json", ".zgroup", ".zarray")
OURS = "iobench"  # an attribute of groups that we wrote, in which every chunk is stored


@dataclass(frozen=True)
class Zarr(Format):
    """A Zarr group with one array per field."""

    name: ClassVar[str] = "zarr"
    summary: ClassVar[str] = "a Zarr 3 group, one array per field, chunks as files or in shards"
    library: ClassVar[str] = "zarr"
    modules: ClassVar[tuple[str, ...]] = ("zarr",)
    extra: ClassVar[str] = "zarr"
    survives_unlink: ClassVar[bool] = False

    chunk_bytes: int = option(1 << 20, "bytes in a chunk of whole samples", minimum=1)
    shard_bytes: int = option(0, "bytes in a shard of whole chunks; 0 is a file for each chunk", minimum=0)
    codec: str | None = option(None, "what chunks are packed with", choices=(None, "zstd", "blosc"))

    @property
    def libraries(self) -> tuple[str, ...]:
        """With what unpacks the chunks."""
        return (self.library, "numcodecs")

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write the group, a whole chunk or shard at a time."""
        import zarr

        group = zarr.open_group(path, mode="w", zarr_format=3, attributes={OURS: 1})
        arrays, slabs, starts = {}, {}, dict.fromkeys((f.name for f in schema.fields), 0)
        for f in schema.fields:
            chunk, shard = self._rows(f, schema.samples)
            arrays[f.name] = group.create_array(
                f.name,
                shape=(schema.samples, *f.shape),
                dtype=f.dtype,
                chunks=(chunk, *f.shape),
                shards=(shard, *f.shape) if self.shard_bytes else None,
                compressors=_compressor(self.codec),
                config={"write_empty_chunks": True, "order": "C"},  # a missing chunk is damage then
            )
            slabs[f.name] = Slab(shard)

        def put(name: str, pieces: Iterable[Any]) -> None:
            for piece in pieces:
                arrays[name][starts[name] : starts[name] + len(piece)] = piece
                starts[name] += len(piece)

        for batch in batches:
            for name, slab in slabs.items():
                put(name, slab.add(batch[name]))
        for name, slab in slabs.items():
            put(name, slab.rest())

    def open(self, path: Path, schema: Schema, random: bool = False) -> ZarrReader:
        """A reader, after the metadata were checked, and in a group of ours the files of all chunks."""
        from iobench.formats._zarr_reader import ZarrReader

        return ZarrReader(path, schema)

    def sniff(self, path: Path) -> bool:
        """A folder with Zarr's metadata."""
        return any((path / name).is_file() for name in METADATA)

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """A field for the array, or for each array in the group and in those below it."""
        from iobench.formats._zarr_reader import infer_schema_of

        return infer_schema_of(path, fields)

    def notes(self, path: Path, schema: Schema) -> list[str]:
        """How many chunks nobody stored, whether that was meant or they were lost."""
        from iobench.formats._zarr_reader import not_stored

        return not_stored(path, schema)

    def size_bound(self, schema: Schema) -> int:
        """Logical bytes, the last shard and chunk of each field whole, and what every chunk adds."""
        bound = super().size_bound(schema)
        for field in schema.fields:
            chunk, shard = self._rows(field, schema.samples)
            chunks = schema.samples // chunk + 1 + shard // chunk
            # a file's last block, its folder, an entry of an index, what a codec adds to noise
            bound += shard * field.sample_bytes + (64 << 10)
            bound += chunks * (64 + chunk * field.sample_bytes // 200) + (schema.samples // shard + 1) * 8192
        return bound

    def _rows(self, field: Field, samples: int) -> tuple[int, int]:
        """The samples in a chunk, and in a shard or else again in a chunk."""
        chunk = min(samples, max(1, self.chunk_bytes // field.sample_bytes))
        chunks = min(-(-samples // chunk), max(1, self.shard_bytes // (chunk * field.sample_bytes)))
        return chunk, chunk * chunks


def _compressor(codec: str | None) -> Any:
    from zarr.codecs import BloscCodec, ZstdCodec

    if codec == "zstd":
        return ZstdCodec(level=1)
    return BloscCodec(cname="lz4", clevel=5) if codec == "blosc" else None
