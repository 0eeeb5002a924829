"""Reader of Zarr through its library, and where its chunks lie: files, or parts of shards.

No array is opened with a codec that could run code of the file, and damaged chunks are decompressed, too.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import stat
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import google_crc32c
import numcodecs
import numpy as np
import zarr
from zarr.codecs import BloscCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer
from zarr.registry import register_codec

from iobench.base.errors import CorruptArtifact, corrupt, damage, expecting
from iobench.base.files import regular
from iobench.base.finding import Finding
from iobench.formats import (
    DTYPES,
    Array,
    Batch,
    Blocks,
    Chunked,
    Convert,
    Field,
    Index,
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
    without_samples,
)
from iobench.formats.folders import attribute_notes, attributes_not_read, parts_not_read

OURS = "iobench"  # attribute of groups that iobench wrote, in which every chunk is stored
# Data that were never written read as fill values, without end. More than 1 GiB beyond what a codec can
# compress 10,000 : 1 cannot be data.
MOST_FILLED_BYTES, MOST_PACKED = 1 << 30, 10_000
METADATA = {"zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"}
# what zarr and its codecs raise for damaged metadata and chunks
DAMAGE = (
    *(OSError, ValueError, KeyError, TypeError, RuntimeError),
    *(AttributeError, IndexError, AssertionError, SystemError, MemoryError, OverflowError, RecursionError),
)
MOST_EXTENT, MOST_IN_SHARD = (1 << 63) - 1, 1 << 22  # of which a shard's index takes 64 MiB
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
        if single := isinstance(node, zarr.Array):
            arrays = {path.name.partition(".")[0]: node}
        else:  # by name, because `members()` warns of each other file in the folder, such as a seal
            named = ((name, node[name]) for name in folders)
            arrays = {name: member for name, member in named if isinstance(member, zarr.Array)}
        for name, array in arrays.items():
            extents = (1, *array.chunks, *(array.shards or ()))
            if all(array.shape) and (min(extents) < 1 or max(extents) > MOST_EXTENT):  # zarr reads no chunk
                raise corrupt(path, f"{name}: chunks of 1 to 2^63 - 1", str(extents)[:100], "invalid-chunks")
            pairs = zip(array.shards or array.chunks, array.chunks, strict=True)
            if (inside := math.prod(whole // step for whole, step in pairs)) > MOST_IN_SHARD:
                expected = f"{name}: at most {MOST_IN_SHARD:,} chunks in a shard"
                raise corrupt(path, expected, f"{inside:,}", "invalid-chunks")
        return arrays, not single and node.attrs.get(OURS) == 1


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
    """Return the schema of arrays that another program wrote; CorruptArtifact if chunks are damaged.

    What has no axis of samples is left out, unless it is `chosen`.
    """
    arrays, _ = open_arrays(path)
    every = {name: (array.shape, array.dtype.name) for name, array in arrays.items()}
    stored = (Path(folder) / name for folder, _, names in os.walk(path) for name in names)
    stored_bytes = sum(file.lstat().st_size for file in stored)
    taken = [name for name in select_arrays(path, every, chosen) if name not in _left_out(arrays, chosen)]
    schema = selected_schema(path, every, taken, fields)
    if schema.logical_bytes > MOST_FILLED_BYTES + MOST_PACKED * stored_bytes:
        problem, expected = "most of the data were never written", f"{schema.logical_bytes:,} bytes of arrays"
        found = f"{stored_bytes:,} stored bytes"
        raise CorruptArtifact(problem, "not-stored", path, expected=expected, found=found)
    names = fields_by_name(path, arrays)
    for field in schema.fields:
        array = arrays[names[field.name]]
        if (chunks := chunks_of(array, path / array.path, field)) is not None:
            chunks.check(field)
    return schema


def _left_out(arrays: Mapping[str, zarr.Array[Any]], chosen: Sequence[str]) -> set[str]:
    """Return the arrays beside others that have no axis of samples, without those that are `chosen`."""
    refused = {name for name, one in arrays.items() if one.dtype.name not in DTYPES}
    return without_samples({name: one.shape for name, one in arrays.items()}, refused) - set(chosen)


def not_read(path: Path, schema: Schema, chosen: Sequence[str]) -> list[Finding]:
    """Warn of each field with chunks that are not stored, and of arrays that are left out."""
    arrays, _ = open_arrays(path)
    left_out = _left_out(arrays, chosen).intersection(select_arrays(path, arrays, chosen))
    notes = parts_not_read("array", left_out, " without an axis of samples")
    nodes = (*arrays.values(), zarr.open(path, mode="r", use_consolidated=False))
    notes += attributes_not_read(str(name) for node in nodes for name in node.attrs)
    names = fields_by_name(path, arrays)
    notes += attribute_notes({one.name: arrays[names[one.name]].attrs for one in schema.fields})
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


HEADER_BYTES = 18  # enough to read a chunk's size, for any codec
BLOSC_HEADER_BYTES = 16
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
GZIP = 31  # zlib's wbits for gzip
KNOWN = {"zstd": numcodecs.Zstd, "blosc": numcodecs.Blosc, "gzip": numcodecs.GZip}
# raised for damaged chunks, which may claim any size
CHUNK_DAMAGE = (RuntimeError, ValueError, OSError, SystemError, MemoryError, OverflowError, zlib.error)


def unpack(codec: Any, stored: memoryview, whole: int, into: Array) -> None:
    """Decompress a chunk of `whole` bytes, and store as many of them in `into` as fit.

    CHUNK_DAMAGE if the chunk does not have `whole` bytes, which its header shows in most cases.
    """
    check_header(codec, stored[:HEADER_BYTES], len(stored), whole)
    if isinstance(codec, numcodecs.GZip):
        data: Any = _gunzipped(stored, whole + 1)
    else:
        # in place only if the header has the size: numcodecs does not report that a chunk was shorter
        direct = len(into) == whole and unpacked_bytes(codec, stored[:HEADER_BYTES]) is not None
        data = codec.decode(stored, into if direct else None)
        if direct:
            return
    data = np.frombuffer(data, np.uint8)
    if len(data) != whole:
        raise ValueError(f"{len(data)} bytes")
    into[:] = data[: len(into)]


def check_header(codec: Any, header: memoryview, stored: int, whole: int | None = None) -> None:
    """Raise ValueError if a chunk's header claims other sizes than `stored` and, if known, `whole` bytes.

    c-blosc trusts the header and reads past the end of a truncated chunk.
    """
    if isinstance(codec, numcodecs.Blosc):
        claimed = int.from_bytes(header[12:16], "little")
        if len(header) < BLOSC_HEADER_BYTES or claimed != stored:
            raise ValueError(f"{stored} compressed bytes instead of {max(claimed, BLOSC_HEADER_BYTES)}")
    if whole is not None and unpacked_bytes(codec, header) not in (None, whole):
        raise ValueError(f"{unpacked_bytes(codec, header)} bytes")


class CheckedBlosc(BloscCodec):
    """Blosc for chunks that zarr decompresses: refuses those whose header claims another size."""

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        header = chunk_bytes[:HEADER_BYTES].as_numpy_array().data
        check_header(numcodecs.Blosc(), header, len(chunk_bytes))
        return await super()._decode_single(chunk_bytes, chunk_spec)


register_codec("blosc", CheckedBlosc)
zarr.config.set({"codecs.blosc": f"{__name__}.{CheckedBlosc.__qualname__}"})


def unpacked_bytes(codec: Any, header: memoryview) -> int | None:
    """Return the decompressed size from a chunk's header; None if the header does not hold it."""
    if isinstance(codec, numcodecs.Blosc) and len(header) >= BLOSC_HEADER_BYTES:
        return int.from_bytes(header[4:8], "little")  # c-blosc's README_CHUNK_FORMAT
    if isinstance(codec, numcodecs.Zstd) and header[:4] == ZSTD_MAGIC and len(header) > 4:
        return _zstd_content_bytes(header)
    return None


def _zstd_content_bytes(header: memoryview) -> int | None:
    """Return a frame's content size, None if it is not stored. Source: RFC 8878, 3.1.1.1."""
    descriptor = header[4]
    single = descriptor >> 5 & 1  # single segment: no window byte, and always a content size
    size = (single, 2, 4, 8)[descriptor >> 6]
    begin = 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]  # after the dictionary id
    content = int.from_bytes(header[begin : begin + size], "little")
    return content + (256 if size == 2 else 0) if size else None  # two bytes count from 256


def _gunzipped(stored: Any, most: int) -> bytes:
    """Decompress a gzip file's members, at most `most` bytes."""
    data = b""
    while len(stored) and len(data) < most:
        member = zlib.decompressobj(GZIP)
        data += member.decompress(stored, most - len(data))
        if not member.eof and len(data) < most:
            raise ValueError(f"{len(data)} bytes and no end")
        stored = member.unused_data
    return data


MISSING = (1 << 64) - 1
INDEX_CODECS = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
CHECKSUM_BYTES = 4


@dataclass(frozen=True, eq=False)
class ZarrChunks:
    """The chunks of an array in row order: file number, byte offset and stored bytes of each."""

    rows: int  # per chunk; the last is padded to the same length
    codec: Any  # a numcodecs codec, or None
    files: tuple[Path, ...]
    file: Index
    offset: Index
    stored: Index

    @property
    def first(self) -> Index:
        """First row of each chunk."""
        return np.arange(len(self.file), dtype=np.int64) * self.rows

    def placement(self, field: Field) -> Chunked:
        """Return the location of a field's rows, in uncompressed chunks."""
        return Chunked(self.files, self.first, self.file, self.offset, field.sample_bytes)

    def blocks(self, field: Field) -> Blocks:
        """Return the chunks of a field as blocks to decode."""
        whole = self.rows * field.sample_bytes

        def decode(number: int, stored: memoryview, out: Mapping[str, Array]) -> None:
            for target in out.values():
                try:
                    unpack(self.codec, stored, whole, target.reshape(-1).view(np.uint8))
                except CHUNK_DAMAGE as error:
                    raise self._damaged(field, number, error) from error

        return Blocks((field.name,), self.files, self.first, self.file, self.offset, self.stored, decode)

    def check(self, field: Field) -> None:
        """Raise CorruptArtifact if a compressed chunk's header claims other sizes than it has or should have.

        Reads the header of every chunk, because libraries read past the end of truncated ones.
        """
        if self.codec is None:
            return
        whole = self.rows * field.sample_bytes
        for number, (low, stored) in enumerate(zip(self.offset.tolist(), self.stored.tolist(), strict=True)):
            with open(self.files[self.file[number]], "rb", buffering=0) as file:
                header = os.pread(file.fileno(), min(HEADER_BYTES, stored), low)
            try:
                check_header(self.codec, memoryview(header), stored, whole)
            except ValueError as error:
                raise self._damaged(field, number, error) from error

    def _damaged(self, field: Field, number: int, found: object) -> CorruptArtifact:
        expected = f"{self.rows * field.sample_bytes} bytes in chunk {number} of {field.name}"
        return corrupt(self.files[self.file[number]], expected, found, kind="damaged-chunk")


def chunks_of(array: zarr.Array[Any], folder: Path, field: Field) -> ZarrChunks | None:
    """Return the chunks of an array in `folder`; None unless rows are contiguous in its chunks.

    They are not if chunks are cut along other axes, transposed, in another byte order, of version 2,
    compressed by an unknown codec, or not all stored.

    CorruptArtifact if a shard's index is damaged.
    """
    metadata: dict[str, Any] = array.metadata.to_dict()
    if metadata["zarr_format"] != 3:
        return None
    grid = metadata["chunk_grid"]["configuration"]["chunk_shape"]
    codecs = [dict(codec) for codec in metadata["codecs"]]
    sharding = codecs[0].get("configuration", {}) if codecs[0]["name"] == "sharding_indexed" else None
    inner = grid if sharding is None else sharding["chunk_shape"]
    codec, known = _codec(codecs if sharding is None else [dict(c) for c in sharding["codecs"]], field)
    if not known or tuple(grid[1:]) != field.shape or tuple(inner[1:]) != field.shape:
        return None
    files = _files(array, folder, grid[0])
    if files is None:
        return None
    chunks = -(-array.shape[0] // inner[0])
    if sharding is None:
        sizes = np.array([file.stat().st_size for file in files], np.int64)
        return ZarrChunks(inner[0], codec, files, np.arange(chunks), np.zeros(chunks, np.int64), sizes)
    if len(codecs) > 1 or sharding.get("index_location", "end") != "end":
        return None
    if [dict(codec) for codec in sharding["index_codecs"]] != INDEX_CODECS:
        return None
    per_shard = grid[0] // inner[0]
    entries = np.concatenate([read_index(file, per_shard) for file in files])[:chunks]
    if (entries == MISSING).any():
        return None
    numbers, (offset, stored) = np.repeat(np.arange(len(files)), per_shard), entries.astype(np.int64).T
    return ZarrChunks(inner[0], codec, files, numbers[:chunks], offset.copy(), stored.copy())


def read_index(file: Path, chunks: int) -> Any:
    """Return the index at a shard's end, (chunks, 2) u64: offset and bytes of each chunk."""
    length = 16 * chunks
    with open(file, "rb") as opened:
        size = opened.seek(0, 2)
        begin = size - length - CHECKSUM_BYTES
        opened.seek(max(0, begin))
        tail = opened.read()
    if begin < 0 or google_crc32c.value(tail[:length]) != int.from_bytes(tail[length:], "little"):
        raise corrupt(file, f"an index of {chunks} chunks at its end", "another checksum", "damaged-index")
    index = np.frombuffer(tail, "<u8", 2 * chunks).reshape(chunks, 2)
    held = index[index[:, 0] != MISSING]
    if (held > begin).any() or (held.sum(1) > begin).any():
        raise corrupt(file, f"chunks in its first {begin} bytes", "chunks after them", "damaged-index")
    return index


def _codec(codecs: list[dict[str, Any]], field: Field) -> tuple[Any, bool]:
    """Return the codec of a chunk (None if uncompressed), and whether it is a known one."""
    first, rest = codecs[0], codecs[1:]
    little = first.get("configuration", {}).get("endian", "little") == "little"
    if first["name"] != "bytes" or not little or len(rest) > 1:
        return None, False
    if not rest:
        return None, True
    made = KNOWN.get(rest[0]["name"])
    return (made(), True) if made else (None, False)


def _files(array: zarr.Array[Any], folder: Path, rows: int) -> tuple[Path, ...] | None:
    """Return the files of an array that is chunked along its first axis only; None if one is missing."""
    zeros = (0,) * (len(array.shape) - 1)
    count = math.ceil(array.shape[0] / rows)
    files = tuple(folder / array.metadata.encode_chunk_key((number, *zeros)) for number in range(count))
    return files if all(map(os.path.isfile, files)) else None
