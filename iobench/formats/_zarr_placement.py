"""Where the chunks of a Zarr array lie: files of their own, or pieces of shards, packed or as they are."""

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

from iobench.base.errors import (
    CorruptArtifact,
    corrupt,
)
from iobench.formats._placement import Blocks, Chunked, Index
from iobench.formats._schema import Array, Field
from iobench.formats._zarr_codecs import DAMAGE, HEADER_BYTES, KNOWN, check_header, unpack

MISSING = (1 << 64) - 1
INDEX_CODECS = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
CHECKSUM_BYTES = 4


@dataclass(frozen=True, eq=False)
class ZarrChunks:
    """The chunks of an array in the order of rows: each in a file, from an offset on, so many bytes."""

    rows: int  # in each but the last; that one is as long, and filled up
    codec: Any  # of numcodecs, or None
    files: tuple[Path, ...]
    file: Index
    offset: Index
    stored: Index

    @property
    def first(self) -> Index:
        """The first row of each."""
        return np.arange(len(self.file), dtype=np.int64) * self.rows

    def placement(self, field: Field) -> Chunked:
        """Where the rows of a field lie, in chunks as they are in memory."""
        return Chunked(self.files, self.first, self.file, self.offset, field.sample_bytes)

    def blocks(self, field: Field) -> Blocks:
        """The chunks of a field as blocks to be decoded."""
        whole = self.rows * field.sample_bytes

        def decode(number: int, stored: memoryview, out: Mapping[str, Array]) -> None:
            for target in out.values():
                try:
                    unpack(self.codec, stored, whole, target.reshape(-1).view(np.uint8))
                except DAMAGE as error:
                    raise self._damaged(field, number, error) from error

        return Blocks((field.name,), self.files, self.first, self.file, self.offset, self.stored, decode)

    def check(self, field: Field) -> None:
        """CorruptArtifact where a packed chunk says that it has another size than it has, or should have.

        That takes a look at each: libraries read beyond those that were cut off.
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
        return corrupt(self.files[self.file[number]], expected, found)


def chunks_of(array: zarr.Array[Any], folder: Path, field: Field) -> ZarrChunks | None:
    """The chunks of an array that lies in `folder`; None where rows are no bytes in a row in them.

    That is: cut along other axes, transposed, in another byte order, of version 2, packed by codecs that
    are not known here, or not all stored. CorruptArtifact where a shard's index is damaged.
    """
    described: dict[str, Any] = array.metadata.to_dict()
    if described["zarr_format"] != 3:
        return None
    grid = described["chunk_grid"]["configuration"]["chunk_shape"]
    codecs = [dict(codec) for codec in described["codecs"]]
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
    """The index at a shard's end, (chunks, 2) u64: where each chunk begins, and its bytes."""
    length = 16 * chunks
    with open(file, "rb") as opened:
        size = opened.seek(0, 2)
        begin = size - length - CHECKSUM_BYTES
        opened.seek(max(0, begin))
        found = opened.read()
    if begin < 0 or google_crc32c.value(found[:length]) != int.from_bytes(found[length:], "little"):
        raise corrupt(file, f"an index of {chunks} chunks at its end", "one of another checksum")
    index = np.frombuffer(found, "<u8", 2 * chunks).reshape(chunks, 2)
    held = index[index[:, 0] != MISSING]
    if (held > begin).any() or (held.sum(1) > begin).any():
        raise corrupt(file, f"chunks in its first {begin} bytes", "chunks beyond them")
    return index


def _codec(codecs: list[dict[str, Any]], field: Field) -> tuple[Any, bool]:
    """What decodes a chunk, None for nothing, and whether that is known."""
    first, rest = codecs[0], codecs[1:]
    little = first.get("configuration", {}).get("endian", "little") == "little"
    if first["name"] != "bytes" or not little or len(rest) > 1:
        return None, False
    if not rest:
        return None, True
    made = KNOWN.get(rest[0]["name"])
    return (made(), True) if made else (None, False)


def _files(array: zarr.Array[Any], folder: Path, rows: int) -> tuple[Path, ...] | None:
    """The files of an array that is cut along its first axis alone; None where one is missing."""
    zeros = (0,) * (len(array.shape) - 1)
    count = math.ceil(array.shape[0] / rows)
    files = tuple(folder / array.metadata.encode_chunk_key((number, *zeros)) for number in range(count))
    return files if all(map(os.path.isfile, files)) else None
