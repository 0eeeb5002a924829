"""Format blosc2: one `<field>.b2nd` per field, compressed in chunks along the samples."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from iobench.base.options import option
from iobench.contrib.formats.shared.rebatch import fill_arrays
from iobench.formats import ArrayFormat, Batch, Detectable, Field, Schema, StoredArray, stored_arrays

if TYPE_CHECKING:
    from iobench.contrib.formats.blosc2.reader import Blosc2Reader

SUFFIX = ".b2nd"
BLOCK_BYTES = 256 << 10  # of whole samples: the unit of decompression, by one thread


@dataclass(frozen=True)
class Blosc2(ArrayFormat, Detectable):
    """A .b2nd file per field."""

    name: ClassVar[str] = "blosc2"
    summary: ClassVar[str] = "one Blosc2 array (.b2nd) per field, compressed in chunks of samples"
    library: ClassVar[str] = "blosc2"
    modules: ClassVar[tuple[str, ...]] = ("blosc2",)
    extra: ClassVar[str] = "blosc2"
    survives_unlink: ClassVar[bool] = False

    chunk_bytes: int = option(1 << 20, "bytes per chunk of whole samples", minimum=1)
    codec: str = option("lz4", "compression of chunks, after a shuffle", choices=("lz4", "zstd"))

    def write_arrays(self, path: Path, arrays: Collection[StoredArray], batches: Iterable[Batch]) -> None:
        """Write `<name>.b2nd` for every array, one whole chunk at a time."""
        import blosc2

        path.mkdir()
        codec = {"lz4": blosc2.Codec.LZ4, "zstd": blosc2.Codec.ZSTD}[self.codec]
        opened, rows = dict[str, Any](), dict[str, int]()
        for array in arrays:
            chunk, block = self._rows(array)
            opened[array.name] = blosc2.empty(
                array.shape,
                dtype=array.row.dtype,
                chunks=(chunk, *array.row.shape),
                blocks=(block, *array.row.shape),
                urlpath=str(path / f"{array.name}{SUFFIX}"),
                mode="w",
                cparams=blosc2.CParams(codec=codec, clevel=1 if self.codec == "zstd" else 5),
            )
            rows[array.name] = chunk
        fill_arrays(opened, rows, batches)

    def open_arrays(
        self, path: Path, schema: Schema, random: bool = False, others: Collection[str] = ()
    ) -> Blosc2Reader:
        """Check each array's shape and dtype, and return a reader."""
        from iobench.contrib.formats.blosc2.reader import Blosc2Reader

        if path.is_dir():
            return Blosc2Reader({f.name: path / f"{f.name}{SUFFIX}" for f in schema.fields}, schema)
        return Blosc2Reader({f.name: path for f in schema.fields[:1]}, schema)

    def sniff(self, path: Path) -> bool:
        """Return True for a file whose name ends in .b2nd."""
        return path.suffix == SUFFIX and path.is_file()

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return a schema of one field, named after the file."""
        from iobench.contrib.formats.blosc2.reader import infer_schema_of

        return infer_schema_of(path, fields)

    def size_bound(self, schema: Schema) -> int:
        """Return logical bytes, a whole last chunk per field, and headers of chunks and blocks."""
        bound = super().size_bound(schema)
        for array in stored_arrays(schema):
            chunk, block = self._rows(array)
            chunks = array.length // chunk + 1
            bound += chunk * array.row.sample_bytes + chunks * (256 + 64 * (chunk // block)) + (64 << 10)
        return bound

    def _rows(self, array: StoredArray) -> tuple[int, int]:
        """Return the rows per chunk and per block; a chunk consists of whole blocks."""
        chunk = min(array.length, max(1, self.chunk_bytes // array.row.sample_bytes))
        block = min(chunk, max(1, BLOCK_BYTES // array.row.sample_bytes))
        return chunk - chunk % block, block
