"""Reader of Zarr through its library, which opens no array with a codec that could run code of the file."""

from __future__ import annotations

import itertools
import json
import math
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from iobench.base.errors import CorruptArtifact, corrupt, damage, expecting
from iobench.base.files import regular
from iobench.base.finding import Finding
from iobench.contrib.formats.shared.external import check_stored
from iobench.contrib.formats.zarr.chunks import INDEX_CODECS, MISSING, ZarrChunks, chunks_of, read_index
from iobench.formats import (
    Array,
    Batch,
    Blocks,
    Convert,
    Field,
    Placement,
    Reader,
    Rows,
    Schema,
    fields_by_name,
    identity,
    native,
    select_arrays,
    selected_schema,
    unclosed,
)

OURS = "iobench"
METADATA = {"zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"}
# what zarr and its codecs raise for damaged metadata and chunks
DAMAGE = (
    *(OSError, ValueError, KeyError, TypeError, RuntimeError),
    *(AttributeError, IndexError, AssertionError, SystemError, MemoryError, OverflowError, RecursionError),
)
# of versions 3 and 2; others, such as numcodecs' pickle, run code from the file
CODECS = {
    *("bytes", "sharding_indexed", "zstd", "blosc", "gzip", "crc32c", "transpose"),
    *("zlib", "lz4", "bz2", "lzma", "shuffle", "delta", "bitround", "fixedscaleoffset", "packbits"),
}


def open_arrays(path: Path) -> tuple[dict[str, zarr.Array[Any]], bool]:
    """Return the arrays of a group and its subgroups by path, or the one at `path`; True if iobench wrote it.

    CorruptArtifact if it is not Zarr, or (``unknown-codec``) if a codec is not one that only decompresses.
    """
    with expecting(path, "a Zarr group", DAMAGE):
        folders = _array_folders(path)
        # consolidated metadata may be stale, and were not checked above
        node = zarr.open(path, mode="r", use_consolidated=False)
        if isinstance(node, zarr.Array):
            return {path.name.partition(".")[0]: node}, False
        # by name, because `members()` warns of each other file in the folder, such as a seal
        named = ((name, node[name]) for name in folders)
        return {n: member for n, member in named if isinstance(member, zarr.Array)}, node.attrs.get(OURS) == 1


def _array_folders(path: Path) -> list[str]:
    """Return the folders of arrays below `path`; CorruptArtifact (``unknown-codec``) for unsafe codecs."""
    folders = []
    for folder, below, names in os.walk(path):
        is_array = [_is_array(Path(folder, name)) for name in sorted(METADATA.intersection(names))]
        for one in is_array:
            folders += [os.path.relpath(folder, path)] if one else []
        if any(is_array):
            below.clear()  # folders of chunks, possibly very many
    return sorted(folders)


def _is_array(file: Path) -> bool:
    """Return True if metadata describe an array; refuses unsafe codecs."""
    if file.is_symlink():
        raise corrupt(file, "metadata in this folder", "a link", kind="link")
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
        expected = f"one of {', '.join(sorted(CODECS))}"
        raise CorruptArtifact("unknown codec", "unknown-codec", file, expected=expected, found=name)
    options = codec.get("configuration", {})
    for inner in (*options.get("codecs", ()), *options.get("index_codecs", ())):  # of shards
        _refuse(file, inner)


def missing_chunks(array: zarr.Array[Any], folder: Path) -> tuple[int, int]:
    """Return the number of chunks of an array in `folder` that are not stored, and of all its chunks.

    Checks each file, and in shards their indexes if they are encoded as zarr writes them.
    """
    whole = array.shards or array.chunks
    counts = [math.ceil(size / step) for size, step in zip(array.shape, whole, strict=True)]
    total = math.prod(math.ceil(n / step) for n, step in zip(array.shape, array.chunks, strict=True))
    missing = 0
    for place in itertools.product(*map(range, counts)):
        file = folder / array.metadata.encode_chunk_key(place)
        if not os.path.isfile(file):
            missing += int(_held(array, place).sum())
        elif array.shards is not None:
            missing += _missing_in_shard(array, file, place)
    return missing, total


def _held(array: zarr.Array[Any], place: tuple[int, ...]) -> Any:
    """Return a bool array of the shard's chunks (or the only chunk) that lie within the array."""
    within = np.ones((), bool)
    for size, whole, step, number in zip(
        array.shape, array.shards or array.chunks, array.chunks, place, strict=True
    ):
        begins = number * whole + np.arange(0, whole, step) < size
        within = within[..., None] & begins
    return within


def _missing_in_shard(array: zarr.Array[Any], file: Path, place: tuple[int, ...]) -> int:
    metadata: Any = array.metadata.to_dict()
    codec = dict(metadata["codecs"][0])
    known = [dict(one) for one in codec["configuration"]["index_codecs"]] == INDEX_CODECS
    if not known or codec["configuration"].get("index_location", "end") != "end":
        return 0
    held = _held(array, place)
    entries = read_index(file, held.size)[:, 0].reshape(held.shape)
    return int((held & (entries == MISSING)).sum())


def infer_schema_of(path: Path, fields: Sequence[Field], chosen: Sequence[str] = ()) -> Schema:
    """Return the schema of arrays that another program wrote; CorruptArtifact if chunks are damaged."""
    arrays, _ = open_arrays(path)
    every = {name: (array.shape, array.dtype.name) for name, array in arrays.items()}
    stored = (Path(folder) / name for folder, _, names in os.walk(path) for name in names)
    stored_bytes = sum(file.lstat().st_size for file in stored)
    schema = selected_schema(path, every, select_arrays(path, every, chosen), fields)
    check_stored(path, schema, stored_bytes)
    names = fields_by_name(path, arrays)
    for field in schema.fields:
        array = arrays[names[field.name]]
        if (chunks := chunks_of(array, path / array.path, field)) is not None:
            chunks.check(field)
    return schema


def not_stored(path: Path, schema: Schema) -> list[Finding]:
    """Warn of each field with chunks that are not stored."""
    arrays, _ = open_arrays(path)
    names, notes = fields_by_name(path, arrays), []
    for field in schema.fields:
        array = arrays[names[field.name]]
        missing, total = missing_chunks(array, path / array.path)
        if missing:
            fill = 0 if array.fill_value is None else array.fill_value
            are = "is not stored and reads" if missing == 1 else "are not stored and read"
            message = f"{field.name}: {missing:,} of {total:,} chunks {are} as the fill value {fill}"
            values: dict[str, float | int | str] = {"field": field.name, "fill": str(fill)}
            values |= {"missing": missing, "chunks": total}
            notes.append(Finding("missing-chunks", message, values=values))
    return notes


class ZarrReader(Reader):
    """Reads through zarr, which decodes chunks in its own threads."""

    def __init__(self, path: Path, schema: Schema) -> None:
        super().__init__(schema)
        self._path = path
        arrays, ours = open_arrays(path)
        names = fields_by_name(path, arrays)
        self._arrays: dict[str, zarr.Array[Any]] | None = {}
        self._folders: dict[str, Path] = {}
        # built on demand, because it checks each of possibly many files
        self._located: list[tuple[Field, ZarrChunks | None]] | None = None
        for field in schema.fields:
            array = arrays.get(names.get(field.name, ""))
            expected = f"{field.name}: {field.dtype} {(schema.samples, *field.shape)}"
            if array is None:
                raise corrupt(path, expected, "no such array")
            if (actual := f"{field.name}: {array.dtype.name} {array.shape}") != expected:
                raise corrupt(path, expected, actual)
            self._arrays[field.name], self._folders[field.name] = array, path / array.path
            if ours:
                self._check_files(field, array)

    def _check_files(self, field: Field, array: zarr.Array[Any]) -> None:
        """Raise CorruptArtifact if a chunk or shard that `write` stored is missing or has the wrong size."""
        folder, rows = self._folders[field.name], (array.shards or array.chunks)[0]
        plain = array.shards is None and not array.compressors
        size = rows * field.sample_bytes
        for number in range(-(-len(self) // rows)):
            file = folder / array.metadata.encode_chunk_key((number,) + (0,) * len(field.shape))
            stored = _size(file)
            if stored is None:
                raise corrupt(file, "a file with a chunk", "no such file")
            if not stored:  # zarr reads it as zeros
                raise corrupt(file, "a chunk or shard", "an empty file")
            if plain and stored != size:
                raise corrupt(file, f"{size} bytes", f"{stored} bytes")

    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """Return one sample in new arrays; IndexError out of range."""
        self._check_row(row)
        arrays = self._opened()
        return {name: convert(self._read(name, row)) for name in arrays}

    def placement(self) -> Mapping[str, Placement]:
        """Return the location of the fields in uncompressed chunks."""
        return {
            field.name: chunks.placement(field)
            for field, chunks in self._chunks()
            if chunks is not None and chunks.codec is None
        }

    def blocks(self) -> Sequence[Blocks]:
        """Return the blocks of the fields in compressed chunks."""
        return [c.blocks(field) for field, c in self._chunks() if c is not None and c.codec is not None]

    def _chunks(self) -> list[tuple[Field, ZarrChunks | None]]:
        arrays = self._opened()
        if self._located is None:
            fields = self.schema.fields
            self._located = [(f, chunks_of(arrays[f.name], self._folders[f.name], f)) for f in fields]
        return self._located

    def folders(self) -> Mapping[str, tuple[Path, int]]:
        """Return folder and Zarr version of each field's array, for other libraries."""
        opened = self._opened().items()
        return {name: (self._folders[name], array.metadata.zarr_format) for name, array in opened}

    def native(self, rows: Rows) -> Batch:
        """Return the rows by slicing or orthogonal indexing."""
        checked, _ = self._checked(rows)
        return {name: self._read(name, checked) for name in self._opened()}

    def close(self) -> None:
        """Release the arrays; no file stays open between reads."""
        self._arrays = None

    def _opened(self) -> dict[str, zarr.Array[Any]]:
        return unclosed(self._arrays)

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        self._read_rows(slice(start, stop), out)

    def _read_rows(self, rows: Rows, out: Mapping[str, Array]) -> None:
        for name, target in out.items():
            target[...] = self._read(name, rows)

    def _read(self, name: str, rows: Rows | int) -> Array:
        array = self._opened()[name]
        read: Callable[[], Any] = partial(array.__getitem__, rows)
        if isinstance(rows, np.ndarray):
            read = partial(array.get_orthogonal_selection, (rows,))
        try:
            values = read()
        except DAMAGE as error:
            folder, expected = self._folders[name], f"readable chunks of {name}{_damaged_rows(array, rows)}"
            raise damage(error, folder, expected, "damaged-chunk") from error
        if not self._path.exists():  # zarr reads missing chunks as zeros
            raise corrupt(self._path, "a Zarr group", "no such folder")
        return native(np.asarray(values))


def _damaged_rows(array: zarr.Array[Any], rows: Rows | int) -> str:
    """Return the rows of the first chunk or shard of `rows` that cannot be read, as text."""
    length, samples = (array.shards or array.chunks)[0], array.shape[0]
    if isinstance(rows, slice):
        low, high, _ = rows.indices(samples)
        numbers: Sequence[int] = range(low // length, -(-high // length))
    else:
        numbers = np.unique(np.atleast_1d(rows) // length).tolist()
    for number in numbers:
        first = number * length
        try:
            array[first]  # reads all chunks along the other axes
        except DAMAGE:
            return f", in rows {first} to {min(first + length, samples) - 1}"
    return ""


def _size(file: Path) -> int | None:
    """Return the bytes of a regular file; None if there is none, or a link."""
    try:
        status = os.lstat(file)
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
