"""Shards that begin with a table of their samples' offsets, as MDS and LitData have them.

A shard: the number of samples, an offset per sample and one past the last, all u32; perhaps a
description; the samples. A sample: the sizes of some of its columns, u32; the columns, without gaps.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from iobench.base.errors import (
    CorruptArtifact,
    corrupt,
)
from iobench.formats._external import FIXED
from iobench.formats._file_kind import regular
from iobench.formats._packed_images import PackedImages
from iobench.formats._placed_reader import FieldLocations, Maps, runs
from iobench.formats._placement import Chunked, Index, Listed, Placement
from iobench.formats._reader import LoadOrBuild
from iobench.formats._schema import Array, Field

WORD = 4  # bytes of a size or an offset
MOST_SHARD_BYTES = (1 << 32) - 1  # that an offset can say
MOST_SAMPLE_BYTES = MOST_SHARD_BYTES - (1 << 20)


@dataclass(frozen=True)
class ShardColumn:
    """A column of a sample.

    `size`: its bytes, or None where a sample says it; `head`: which of the sizes that a sample begins
    with is this column's. `field`: the field that it holds, and `prefix` what comes before its values.
    `encoded`: whether it is an image, of any size, that is decoded as it is read.
    """

    size: int | None
    head: int | None = None
    field: Field | None = None
    prefix: bytes = b""
    encoded: bool = False

    @property
    def expected(self) -> int | None:
        """Its bytes in every sample, where that is known."""
        if self.field is None or self.encoded:
            return self.size
        return len(self.prefix) + self.field.sample_bytes


@dataclass(frozen=True)
class SampleColumns:
    """What a sample consists of: how many sizes it begins with, and its columns."""

    heads: int
    columns: tuple[ShardColumn, ...]

    def sizes(self, stored: Array, begins: Index) -> Array:
        """The bytes of every column of the samples that begin there, int64 (samples, columns)."""
        said = np.zeros((len(begins), max(1, self.heads)), np.int64)
        if self.heads:
            for some, found in runs(stored, begins, WORD * self.heads):
                said[some] = found.view("<u4")
        known = [
            said[:, c.head] if c.head is not None else np.full(len(begins), c.size) for c in self.columns
        ]
        return np.stack(known, 1).astype(np.int64)


@dataclass(frozen=True)
class _Chunk:
    """Where samples of a shard begin, and where its columns begin in them: alike in all, or for each."""

    begins: Index
    relative: Array  # (1 or samples, columns)
    sizes: Array  # (those that were looked at, columns)
    stride: int | None


def read_index(path: Path) -> dict[str, Any]:
    """An index of JSON; CorruptArtifact where it is none."""
    try:
        found = json.loads(regular(path).read_bytes())
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise corrupt(path, "an index", getattr(error, "strerror", None) or error) from error
    if not isinstance(found, dict):
        raise corrupt(path, "an index", type(found).__name__)
    return found


def inside(folder: Path, name: object) -> Path:
    """A file of an index; CorruptArtifact where its name leads out of the folder."""
    parts = PurePosixPath(name).parts if isinstance(name, str) else ()
    if not parts or ".." in parts or parts[0] == "/" or "\0" in str(name):
        raise CorruptArtifact(f"{folder}: its index names {name!r}, which is no file inside the folder")
    return folder.joinpath(*parts)


def locations_in(
    maps: Maps, rows: Sequence[int], items: SampleColumns, load_or_build: LoadOrBuild
) -> FieldLocations:
    """Where the fields lie in shards of so many samples each; where some are encoded, that is for `load_or_build`."""
    if not any(column.encoded for column in items.columns):
        return FieldLocations(placements(maps, rows, items, thorough=False))
    lists = load_or_build("samples", lambda: listed(maps, rows, items))
    placement: dict[str, Placement] = {}
    blocks = []
    for field, encoded in ((column.field, column.encoded) for column in items.columns):
        if field is None:
            continue
        if encoded:
            blocks.append(packed_images(lists, field).blocks(maps.files, field))
        else:
            placement[field.name] = Listed(maps.files, lists["file"], lists[f"{field.name}.offset"])
    return FieldLocations(placement, blocks)


def packed_images(lists: Mapping[str, Array], field: Field) -> PackedImages:
    """The images of a field, as `listed` found them."""
    offset, size = lists[f"{field.name}.offset"], lists[f"{field.name}.size"]
    return PackedImages(field.name, lists["file"], offset, size)


def listed(maps: Maps, rows: Sequence[int], items: SampleColumns) -> dict[str, Array]:
    """The shard of each sample, and where each field begins in it; how long those are that are encoded.

    CorruptArtifact where tables or sizes lie, or a field is not of one size.
    """
    chunks = [_chunk(maps, number, count, items, True) for number, count in enumerate(rows)]
    lists = {"file": np.repeat(np.arange(len(chunks)), rows)}
    for index, column in enumerate(items.columns):
        if column.field is None:
            continue
        within = [chunk.relative[:, index] + len(column.prefix) for chunk in chunks]
        offset = [c.begins + w for c, w in zip(chunks, within, strict=True)]
        lists[f"{column.field.name}.offset"] = np.concatenate(offset)
        if column.encoded:
            lists[f"{column.field.name}.size"] = np.concatenate([chunk.sizes[:, index] for chunk in chunks])
    return lists


def placements(
    maps: Maps, rows: Sequence[int], items: SampleColumns, thorough: bool
) -> Mapping[str, Placement]:
    """Where the fields lie in shards of so many samples each.

    `thorough`: look at each sample, else where all of a shard are of one size only at the first.
    CorruptArtifact where tables or sizes lie, or a field is not of one size.
    """
    chunks = [_chunk(maps, number, count, items, thorough) for number, count in enumerate(rows)]
    first = np.append(0, np.cumsum(rows)[:-1]).astype(np.int64)
    strides = {chunk.stride for chunk in chunks}
    found: dict[str, Placement] = {}
    for index, column in enumerate(items.columns):
        if column.field is None:
            continue
        within = [chunk.relative[:, index] + len(column.prefix) for chunk in chunks]
        stride = next(iter(strides))
        if len(strides) == 1 and stride is not None:
            offset = np.array([c.begins[0] + w[0] for c, w in zip(chunks, within, strict=True)], np.int64)
            found[column.field.name] = Chunked(maps.files, first, np.arange(len(chunks)), offset, stride)
        else:
            offset = np.concatenate([c.begins + w for c, w in zip(chunks, within, strict=True)])
            file = np.repeat(np.arange(len(chunks)), rows)
            found[column.field.name] = Listed(maps.files, file, offset)
    return found


def _chunk(maps: Maps, number: int, rows: int, items: SampleColumns, thorough: bool) -> _Chunk:
    stored, path = maps[number], maps.files[number]
    edges = offsets_of(stored, path, rows)
    begins, lengths = edges[:-1], np.diff(edges)
    even = bool((lengths == lengths[0]).all())
    known = all(column.expected is not None and column.field is not None for column in items.columns)
    looked = begins[:1] if even and known and not thorough else begins
    if int(lengths.min()) < WORD * items.heads:
        raise corrupt(path, f"samples of at least {WORD * items.heads} bytes", int(lengths.min()))
    sizes = items.sizes(stored, looked)
    ends = WORD * items.heads + np.cumsum(sizes, 1)
    relative = ends - sizes
    if (wrong := np.flatnonzero(ends[:, -1] != lengths[: len(looked)])).size:
        row = int(wrong[0])
        raise corrupt(path, f"{ends[row, -1]} bytes of sample {row}", int(lengths[row]))
    for index, column in enumerate(items.columns):
        if column.field is not None and not column.encoded:
            _check(stored, path, column, looked + relative[:, index], sizes[:, index])
    alike = bool((relative == relative[0]).all())
    stride = int(lengths[0]) if even and alike else None
    return _Chunk(begins, relative[:1] if alike else relative, sizes, stride)


def offsets_of(stored: Array, path: Path, rows: int) -> Index:
    """The table of a shard: where each sample begins, and where the last one ends."""
    table = WORD * (rows + 2)
    if rows < 1 or len(stored) < table:
        raise corrupt(path, f"a shard of {rows} samples", f"{len(stored)} bytes")
    words = stored[:table].view("<u4").astype(np.int64)
    edges: Index = words[1:]
    if words[0] != rows:
        raise corrupt(path, f"{rows} samples", f"{words[0]}")
    if edges[0] < table or edges[-1] > len(stored) or (np.diff(edges) < 0).any():
        raise corrupt(path, f"samples one after the other in {len(stored)} bytes", "offsets that are not")
    return edges


def _check(stored: Array, path: Path, column: ShardColumn, begins: Index, sizes: Array) -> None:
    """CorruptArtifact where a column is not as its field is, in one of the samples that were looked at."""
    field = column.field
    assert field is not None
    if (wrong := np.flatnonzero(sizes != column.expected)).size:
        raise CorruptArtifact(
            f"{path}: {field.name} has {sizes[wrong[0]]} bytes in sample {wrong[0]} of the shard, not "
            f"{column.expected} as {field.dtype} {field.shape}; {FIXED}"
        )
    if column.prefix:
        expected = np.frombuffer(column.prefix, np.uint8)
        for some, found in runs(stored, begins, len(column.prefix)):
            if (wrong := np.flatnonzero((found != expected).any(1))).size:
                row = some.start + int(wrong[0])
                raise CorruptArtifact(
                    f"{path}: {field.name} is of another shape or dtype than {field.dtype} {field.shape} in "
                    f"sample {row} of the shard; {FIXED}"
                )


def table(rows: int, sample_bytes: int, description: bytes = b"") -> bytes:
    """What a shard of samples of one size begins with."""
    begin = WORD * (rows + 2) + len(description)
    edges = begin + np.arange(rows + 1) * sample_bytes
    return struct.pack("<I", rows) + edges.astype("<u4").tobytes() + description


def rows_in_shard(shard_bytes: int, sample_bytes: int, extra: int) -> int:
    """Samples of a shard: at least one, and no more than offsets can say."""
    return max(1, (min(shard_bytes, MOST_SHARD_BYTES) - extra) // (sample_bytes + WORD))
