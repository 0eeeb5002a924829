"""Chunks of a Zarr array: single files or parts of shards, and their decompression, of damaged ones, too."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numcodecs
import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import BloscCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer
from zarr.registry import register_codec

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.formats import Array, Blocks, Chunked, Field, Index

HEADER_BYTES = 18  # enough to read a chunk's size, for any codec
BLOSC_HEADER_BYTES = 16
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
GZIP = 31  # zlib's wbits for gzip
KNOWN = {"zstd": numcodecs.Zstd, "blosc": numcodecs.Blosc, "gzip": numcodecs.GZip}
# raised for damaged chunks, which may claim any size
DAMAGE = (RuntimeError, ValueError, OSError, SystemError, MemoryError, OverflowError, zlib.error)


def unpack(codec: Any, stored: memoryview, whole: int, into: npt.NDArray[np.uint8]) -> None:
    """Decompress a chunk of `whole` bytes, and store as many of them in `into` as fit.

    DAMAGE if the chunk does not have `whole` bytes, which its header shows in most cases.
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
                except DAMAGE as error:
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
    return _in_shards(files, inner[0], grid[0] // inner[0], chunks, codec)


def _in_shards(
    files: tuple[Path, ...], rows: int, per_shard: int, chunks: int, codec: Any
) -> ZarrChunks | None:
    entries = np.concatenate([read_index(file, per_shard) for file in files])[:chunks]
    if (entries == MISSING).any():
        return None
    file = np.repeat(np.arange(len(files)), per_shard)[:chunks]
    offset, stored = entries.astype(np.int64).T
    return ZarrChunks(rows, codec, files, file, offset.copy(), stored.copy())


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
