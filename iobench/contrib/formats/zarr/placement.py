"""Locations of a Zarr array's chunks: single files or parts of shards, compressed or not."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import zarr

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.contrib.formats.zarr.codecs import DAMAGE, HEADER_BYTES, KNOWN, check_header, unpack
from iobench.formats import Array, Blocks, Chunked, Field, Index

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
