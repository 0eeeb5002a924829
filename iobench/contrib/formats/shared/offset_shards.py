"""Shards that begin with a table of sample offsets: MDS and LitData.

A shard holds the number of samples, an offset per sample and one past the last, all u32; optionally a
description; the samples. A sample holds the sizes of some of its columns, u32, then the columns without
gaps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt, expecting
from iobench.base.files import regular
from iobench.contrib.formats.shared.external import unequal_samples
from iobench.contrib.formats.shared.packed_images import PackedImages
from iobench.contrib.formats.shared.placed_reader import FieldLocations, Maps, runs
from iobench.formats import Array, Chunked, Field, Index, Listed, ListedSpans, LoadOrBuild, Placement

WORD = 4  # bytes of a size or an offset
COUNT_AT = 2 * WORD
MOST_SHARD_BYTES = (1 << 32) - 1  # limit of a u32 offset
MOST_SAMPLE_BYTES = MOST_SHARD_BYTES - (1 << 20)


@dataclass(frozen=True)
class ShardColumn:
    """A column of a sample."""

    size: int | None  # bytes of the column; None if each sample stores its size
    head: int | None = None  # position of the column's size among the sizes at the start of a sample
    field: Field | None = None  # field that the column holds; None if it is not read
    prefix: bytes = b""  # bytes before the column's values
    count: str = ""  # dtype of a ragged sample's length within the prefix, from COUNT_AT on
    encoded: bool = False  # True for an image of any stored size, which is decoded as it is read

    @property
    def listed(self) -> bool:
        """True for a field whose bytes differ from sample to sample."""
        return self.encoded or (self.field is not None and self.field.is_ragged)

    @property
    def expected(self) -> int | None:
        """Bytes of the column in every sample, if known."""
        if self.field is None or self.listed:
            return self.size
        return len(self.prefix) + self.field.sample_bytes


@dataclass(frozen=True)
class SampleColumns:
    """Layout of a sample: the number of sizes that it begins with (`heads`), and its columns."""

    heads: int
    columns: tuple[ShardColumn, ...]

    def sizes(self, stored: Array, begins: Index) -> Array:
        """Return the bytes of all columns of the samples at these offsets, int64 (samples, columns)."""
        heads = np.zeros((len(begins), max(1, self.heads)), np.int64)
        if self.heads:
            for some, piece in runs(stored, begins, WORD * self.heads):
                heads[some] = piece.view("<u4")
        known = [
            heads[:, c.head] if c.head is not None else np.full(len(begins), c.size) for c in self.columns
        ]
        return np.stack(known, 1).astype(np.int64)


@dataclass(frozen=True)
class _Chunk:
    """Offsets of a shard's samples, and of the columns within them: one row for all, or one per sample."""

    begins: Index
    relative: Array  # (1 or samples, columns)
    sizes: Array  # (samples that were read, columns)
    stride: int | None


def read_index(path: Path) -> dict[str, Any]:
    """Read a JSON index; CorruptArtifact if it is not one."""
    with expecting(path, "an index", (OSError, ValueError, RecursionError, MemoryError)):
        index = json.loads(regular(path).read_bytes())
    if not isinstance(index, dict):
        raise corrupt(path, "an index", type(index).__name__)
    return index


def inside(folder: Path, name: object) -> Path:
    """Return the path of a file that an index names; CorruptArtifact if it is outside the folder."""
    parts = PurePosixPath(name).parts if isinstance(name, str) else ()
    if not parts or ".." in parts or parts[0] == "/" or "\0" in str(name):
        raise CorruptArtifact(
            "the index names a file outside the folder", kind="outside-folder", path=folder, found=repr(name)
        )
    return folder.joinpath(*parts)


def maps_of(files: Sequence[Path], sizes: Sequence[int]) -> Maps:
    """Return the mapped shards; CorruptArtifact if one is missing or not of the size in the index."""
    for file, size in zip(files, sizes, strict=True):
        if not file.is_file():
            raise corrupt(file, f"{size} bytes", "no such file", kind="missing-file")
        if (actual := file.stat().st_size) != size:
            kind = "truncated" if actual < size else "trailing-bytes"
            raise corrupt(file, f"{size} bytes", actual, kind=kind)
    return Maps(files)


def locations_in(
    maps: Maps, rows: Sequence[int], items: SampleColumns, load_or_build: LoadOrBuild
) -> FieldLocations:
    """Return the locations of the fields in shards of `rows` samples each.

    If some fields are encoded or ragged, the offsets come through `load_or_build`.
    """
    if not any(column.listed for column in items.columns):
        return FieldLocations(placements(maps, rows, items))
    lists = load_or_build("samples", lambda: [listed(maps, rows, items)])
    placement: dict[str, Placement] = {}
    blocks = []
    for field, encoded in ((column.field, column.encoded) for column in items.columns):
        if field is None:
            continue
        file, offset = lists["file"], lists[f"{field.name}.offset"]
        if encoded:
            blocks.append(packed_images(lists, field).blocks(maps.files, field))
        elif field.is_ragged:
            placement[field.name] = ListedSpans(maps.files, file, offset, lists[f"{field.name}.size"])
        else:
            placement[field.name] = Listed(maps.files, file, offset)
    return FieldLocations(placement, blocks)


def packed_images(lists: Mapping[str, Array], field: Field) -> PackedImages:
    """Return the images of a field from the arrays of `listed`."""
    offset, size = lists[f"{field.name}.offset"], lists[f"{field.name}.size"]
    return PackedImages(field.name, lists["file"], offset, size)


def listed(maps: Maps, rows: Sequence[int], items: SampleColumns) -> dict[str, Array]:
    """Return the shard of each sample, each field's offset in it, and the sizes of encoded and ragged fields.

    CorruptArtifact if tables or sizes contradict each other, a field is not of one size, or a ragged one not
    of whole elements.
    """
    chunks = [_chunk(maps, number, count, items, True) for number, count in enumerate(rows)]
    lists = {"file": np.repeat(np.arange(len(chunks)), rows)}
    for index, column in enumerate(items.columns):
        if column.field is None:
            continue
        within = [chunk.relative[:, index] + len(column.prefix) for chunk in chunks]
        offset = [c.begins + w for c, w in zip(chunks, within, strict=True)]
        lists[f"{column.field.name}.offset"] = np.concatenate(offset)
        if column.listed:
            sizes = np.concatenate([chunk.sizes[:, index] for chunk in chunks])
            lists[f"{column.field.name}.size"] = sizes - len(column.prefix)
    return lists


def placements(maps: Maps, rows: Sequence[int], items: SampleColumns) -> Mapping[str, Placement]:
    """Return the locations of the fields in shards of `rows` samples each.

    In a shard whose samples are all of one size, only the sizes of the first are read.

    CorruptArtifact if tables or sizes contradict each other, or a field is not of one size.
    """
    chunks = [_chunk(maps, number, count, items, False) for number, count in enumerate(rows)]
    first = np.append(0, np.cumsum(rows)[:-1]).astype(np.int64)
    strides = {chunk.stride for chunk in chunks}
    located: dict[str, Placement] = {}
    for index, column in enumerate(items.columns):
        if column.field is None:
            continue
        within = [chunk.relative[:, index] + len(column.prefix) for chunk in chunks]
        stride = next(iter(strides))
        if len(strides) == 1 and stride is not None:
            offset = np.array([c.begins[0] + w[0] for c, w in zip(chunks, within, strict=True)], np.int64)
            located[column.field.name] = Chunked(maps.files, first, np.arange(len(chunks)), offset, stride)
        else:
            offset = np.concatenate([c.begins + w for c, w in zip(chunks, within, strict=True)])
            file = np.repeat(np.arange(len(chunks)), rows)
            located[column.field.name] = Listed(maps.files, file, offset)
    return located


def _chunk(maps: Maps, number: int, rows: int, items: SampleColumns, thorough: bool) -> _Chunk:
    stored, path = maps[number], maps.files[number]
    edges = offsets_of(stored, path, rows)
    begins, lengths = edges[:-1], np.diff(edges)
    even = bool((lengths == lengths[0]).all())
    known = all(column.expected is not None and column.field is not None for column in items.columns)
    sampled = begins[:1] if even and known and not thorough else begins
    if int(lengths.min()) < WORD * items.heads:
        raise corrupt(path, f"samples of at least {WORD * items.heads} bytes", int(lengths.min()))
    sizes = items.sizes(stored, sampled)
    ends = WORD * items.heads + np.cumsum(sizes, 1)
    relative = ends - sizes
    if (wrong := np.flatnonzero(ends[:, -1] != lengths[: len(sampled)])).size:
        row = int(wrong[0])
        raise corrupt(path, f"{ends[row, -1]} bytes in sample {row}", int(lengths[row]))
    for index, column in enumerate(items.columns):
        if column.field is not None and not column.encoded:
            _check(stored, path, column, sampled + relative[:, index], sizes[:, index])
    alike = bool((relative == relative[0]).all())
    stride = int(lengths[0]) if even and alike else None
    return _Chunk(begins, relative[:1] if alike else relative, sizes, stride)


def offsets_of(stored: Array, path: Path, rows: int) -> Index:
    """Return a shard's table: the offset of each sample, and the end of the last one."""
    table = WORD * (rows + 2)
    if rows < 1 or len(stored) < table:
        raise corrupt(path, f"a shard of {rows} samples", f"{len(stored)} bytes")
    words = stored[:table].view("<u4").astype(np.int64)
    edges: Index = words[1:]
    if words[0] != rows:
        raise corrupt(path, f"{rows} samples", f"{words[0]}")
    if edges[0] < table or edges[-1] > len(stored) or (np.diff(edges) < 0).any():
        raise corrupt(path, f"increasing sample offsets within {len(stored)} bytes", "others")
    return edges


def _check(stored: Array, path: Path, column: ShardColumn, begins: Index, sizes: Array) -> None:
    """Raise CorruptArtifact if a column differs from its field in one of these samples."""
    field = column.field
    assert field is not None
    if field.is_ragged:
        _check_ragged(stored, path, column, field, begins, sizes - len(column.prefix))
        return
    if (wrong := np.flatnonzero(sizes != column.expected)).size:
        raise unequal_samples(
            path,
            f"{field.name} in sample {wrong[0]} of the shard",
            f"{column.expected} bytes of {field.dtype} {field.shape}",
            f"{sizes[wrong[0]]} bytes",
        )
    if column.prefix:
        expected = np.frombuffer(column.prefix, np.uint8)
        for some, prefixes in runs(stored, begins, len(column.prefix)):
            if (wrong := np.flatnonzero((prefixes != expected).any(1))).size:
                problem = f"{field.name} in sample {some.start + int(wrong[0])} of the shard"
                raise unequal_samples(path, problem, f"{field.dtype} {field.shape}", "another shape or dtype")


def _check_ragged(
    stored: Array, path: Path, column: ShardColumn, field: Field, begins: Index, sizes: Array
) -> None:
    """Raise CorruptArtifact if values of these bytes differ from a ragged field in one of these samples."""
    if (wrong := np.flatnonzero((sizes % field.sample_bytes != 0) | (sizes < 0))).size:
        multiple = f"a multiple of {field.sample_bytes} bytes in sample {wrong[0]} of {field.name}"
        raise corrupt(path, multiple, f"{sizes[wrong[0]]} bytes")
    count = slice(COUNT_AT, COUNT_AT + WORD)
    for some, prefixes in runs(stored, begins, len(column.prefix)) if column.prefix else ():
        expected = np.tile(np.frombuffer(column.prefix, np.uint8), (len(prefixes), 1))
        lengths = (sizes[some] // field.sample_bytes).astype(column.count)
        expected[:, count] = lengths.view(np.uint8).reshape(-1, WORD)
        if (wrong := np.flatnonzero((prefixes != expected).any(1))).size:
            place = f"{field.name} of {lengths[wrong[0]]} × {field.dtype} {field.inner}"
            raise corrupt(path, f"{place} in sample {some.start + int(wrong[0])}", "another shape or dtype")
