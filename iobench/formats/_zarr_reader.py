"""Reading Zarr through its library; codecs that could run code of the file's choice are refused first."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from iobench.base.errors import (
    CorruptArtifact,
    corrupt,
)
from iobench.base.text import reason
from iobench.formats._arrays import native
from iobench.formats._external import check_stored, fields_by_name, schema_of_arrays
from iobench.formats._file_kind import regular
from iobench.formats._placement import Blocks, Placement
from iobench.formats._reader import Convert, Reader, Rows, identity
from iobench.formats._schema import Array, Batch, Field, Schema
from iobench.formats._zarr_missing import missing_chunks
from iobench.formats._zarr_placement import ZarrChunks, chunks_of

OURS = "iobench"
METADATA = {"zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"}
# what zarr and its codecs raise for damaged metadata and chunks
DAMAGE = (
    *(OSError, ValueError, KeyError, TypeError, RuntimeError),
    *(AttributeError, IndexError, AssertionError, SystemError, MemoryError, OverflowError, RecursionError),
)
# of version 3 and 2; others, such as numcodecs' pickle, would run what a file says
CODECS = {
    *("bytes", "sharding_indexed", "zstd", "blosc", "gzip", "crc32c", "transpose"),
    *("zlib", "lz4", "bz2", "lzma", "shuffle", "delta", "bitround", "fixedscaleoffset", "packbits"),
}


def open_arrays(path: Path) -> tuple[dict[str, zarr.Array[Any]], bool]:
    """The arrays of a group and those below it by their paths, or the one at `path`; whether we wrote them.

    CorruptArtifact where there is none, or a codec is not one of those that only unpack.
    """
    try:
        folders = _array_folders(path)
        # what is consolidated may be stale, and is not what was looked at
        node = zarr.open(path, mode="r", use_consolidated=False)
        if isinstance(node, zarr.Array):
            return {path.name.partition(".")[0]: node}, False
        # by name: a group that is asked for its members warns of each file beside them, such as a seal
        named = ((name, node[name]) for name in folders)
        return {n: member for n, member in named if isinstance(member, zarr.Array)}, node.attrs.get(OURS) == 1
    except DAMAGE as error:
        if isinstance(error, CorruptArtifact):
            raise
        raise corrupt(path, "a Zarr group", reason(error)) from error


def infer_schema_of(path: Path, fields: Sequence[Field]) -> Schema:
    """The samples and fields of arrays that others wrote; CorruptArtifact where chunks say wrong sizes."""
    arrays, _ = open_arrays(path)
    found = {name: (array.shape, array.dtype.name) for name, array in arrays.items()}
    stored = (Path(folder) / name for folder, _, names in os.walk(path) for name in names)
    stored_bytes = sum(file.lstat().st_size for file in stored)
    schema = check_stored(path, schema_of_arrays(path, found, fields), stored_bytes)
    names = fields_by_name(path, arrays)
    for field in schema.fields:
        array = arrays[names[field.name]]
        if (chunks := chunks_of(array, path / array.path, field)) is not None:
            chunks.check(field)
    return schema


def not_stored(path: Path, schema: Schema) -> list[str]:
    """A sentence for each field that has chunks which nobody stored."""
    arrays, _ = open_arrays(path)
    names, said = fields_by_name(path, arrays), []
    for field in schema.fields:
        array = arrays[names[field.name]]
        missing, total = missing_chunks(array, path / array.path)
        if missing:
            fill = 0 if array.fill_value is None else array.fill_value
            are = "is not stored and reads" if missing == 1 else "are not stored and read"
            said.append(f"{field.name}: {missing:,} of {total:,} chunks {are} as the fill value {fill}")
    return said


class ZarrReader(Reader):
    """Reads through zarr, which decodes chunks in threads of its own."""

    def __init__(self, path: Path, schema: Schema) -> None:
        super().__init__(schema)
        self._path = path
        arrays, ours = open_arrays(path)
        names = fields_by_name(path, arrays)
        if ours and set(names) != {field.name for field in schema.fields}:
            raise corrupt(path, f"arrays {', '.join(f.name for f in schema.fields)}", ", ".join(names))
        self._arrays: dict[str, zarr.Array[Any]] | None = {}
        self._folders: dict[str, Path] = {}
        self._found: list[tuple[Field, ZarrChunks | None]] | None = None  # a look at each of very many files
        for field in schema.fields:
            array = arrays.get(names.get(field.name, ""))
            expected = f"{field.name}: {field.dtype} {(schema.samples, *field.shape)}"
            if array is None:
                raise corrupt(path, expected, "no such array")
            if (found := f"{field.name}: {array.dtype.name} {array.shape}") != expected:
                raise corrupt(path, expected, found)
            self._arrays[field.name], self._folders[field.name] = array, path / array.path
            if ours:
                self._check_files(field, array)

    def _check_files(self, field: Field, array: zarr.Array[Any]) -> None:
        """CorruptArtifact where a chunk or shard of ours is missing, or has not the size of plain chunks."""
        folder, rows = self._folders[field.name], (array.shards or array.chunks)[0]
        plain = array.shards is None and not array.compressors
        size = rows * field.sample_bytes
        for number in range(-(-len(self) // rows)):
            file = folder / array.metadata.encode_chunk_key((number,) + (0,) * len(field.shape))
            found = _size(file)
            if found is None:
                raise corrupt(file, "a file with a chunk", "no such file")
            if not found:  # which zarr takes for zeros
                raise corrupt(file, "a chunk or shard", "an empty file")
            if plain and found != size:
                raise corrupt(file, f"{size} bytes", f"{found} bytes")

    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """One sample in fresh arrays; IndexError out of range."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} is not in 0..{len(self) - 1}")
        arrays = self._opened()
        return {name: convert(self._read(name, row)) for name in arrays}

    def placement(self) -> Mapping[str, Placement]:
        """Fields in plain chunks."""
        return {
            field.name: chunks.placement(field)
            for field, chunks in self._chunks()
            if chunks is not None and chunks.codec is None
        }

    def blocks(self) -> Sequence[Blocks]:
        """Fields in packed chunks."""
        return [c.blocks(field) for field, c in self._chunks() if c is not None and c.codec is not None]

    def _chunks(self) -> list[tuple[Field, ZarrChunks | None]]:
        arrays = self._opened()
        if self._found is None:
            fields = self.schema.fields
            self._found = [(f, chunks_of(arrays[f.name], self._folders[f.name], f)) for f in fields]
        return self._found

    def folders(self) -> Mapping[str, tuple[Path, int]]:
        """Where the array of each field lies, and the version of Zarr that it is in, for other libraries."""
        opened = self._opened().items()
        return {name: (self._folders[name], array.metadata.zarr_format) for name, array in opened}

    def native(self, rows: Rows) -> Batch:
        """A slice, or orthogonal indexing."""
        checked, _ = self._checked(rows)
        return {name: self._read(name, checked) for name in self._opened()}

    def close(self) -> None:
        """Let go of the arrays; no file stays open between reads."""
        self._arrays = None

    def _opened(self) -> dict[str, zarr.Array[Any]]:
        if self._arrays is None:
            raise ValueError("this reader is closed")
        return self._arrays

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        self._fill_out(slice(start, stop), out)

    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        self._fill_out(rows, out)

    def _fill_out(self, rows: Rows, out: Mapping[str, Array]) -> None:
        for name, target in out.items():
            target[...] = self._read(name, rows)

    def _read(self, name: str, rows: Rows | int) -> Array:
        array = self._opened()[name]
        read: Callable[[], Any] = partial(array.__getitem__, rows)
        if isinstance(rows, np.ndarray):
            read = partial(array.get_orthogonal_selection, (rows,))
        try:
            found = read()
        except DAMAGE as error:
            where, folder = _damaged_rows(array, rows), self._folders[name]
            raise corrupt(folder, f"readable chunks of {name}{where}", reason(error)) from error
        if not self._path.exists():  # zarr takes missing chunks for zeros
            raise corrupt(self._path, "a Zarr group", "no such folder")
        return native(np.asarray(found))


def _damaged_rows(array: zarr.Array[Any], rows: Rows | int) -> str:
    """Which rows share the first chunk, or shard, that cannot be read, among those of `rows`."""
    length, samples = (array.shards or array.chunks)[0], array.shape[0]
    if isinstance(rows, slice):
        low, high, _ = rows.indices(samples)
        numbers: Sequence[int] = range(low // length, -(-high // length))
    else:
        numbers = np.unique(np.atleast_1d(rows) // length).tolist()
    for number in numbers:
        first = number * length
        try:
            array[first]  # of all chunks beside each other
        except DAMAGE:
            return f", in rows {first} to {min(first + length, samples) - 1}"
    return ""


def _size(file: Path) -> int | None:
    """The bytes of a regular file; None where there is none, or a link."""
    try:
        found = os.lstat(file)
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _array_folders(path: Path) -> list[str]:
    """Where arrays lie below `path`, relative to it; CorruptArtifact where a codec does more than unpack."""
    found = []
    for folder, below, names in os.walk(path):
        described = [_described(Path(folder, name)) for name in sorted(METADATA.intersection(names))]
        for one in described:
            found += [os.path.relpath(folder, path)] if one else []
        if any(described):
            below.clear()  # chunks, of which there may be very many
    return sorted(found)


def _described(file: Path) -> bool:
    """Whether metadata are those of an array, whose codecs are looked at; CorruptArtifact as above."""
    if file.is_symlink():
        raise corrupt(file, "metadata in this folder", "a link")
    stored = regular(file).read_bytes()
    if file.name not in ("zarr.json", ".zarray"):
        return False
    described = json.loads(stored)
    named = [*(described.get("codecs") or ()), *(described.get("filters") or ())]
    named += [described["compressor"]] if described.get("compressor") else []
    for codec in named:
        _refuse(file, codec)
    return file.name == ".zarray" or described.get("node_type") == "array"


def _refuse(file: Path, codec: Mapping[str, Any]) -> None:
    name = str(codec.get("name") or codec.get("id")).removeprefix("numcodecs.")
    if name not in CODECS:
        raise CorruptArtifact(f"{file}: codec {name} is not one that is read ({', '.join(sorted(CODECS))})")
    for inner in codec.get("configuration", {}).get("codecs", ()):
        _refuse(file, inner)
