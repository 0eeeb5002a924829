"""Locations of rows in files: stored as in memory (placements), or encoded in blocks of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from iobench.formats._schema import Array

Index: TypeAlias = npt.NDArray[np.int64]
Decode: TypeAlias = Callable[[int, "memoryview", Mapping[str, Array]], None]


@dataclass(frozen=True)
class Placement(ABC):
    """Locations of one field's samples, each contiguous and stored as in memory."""

    files: tuple[Path, ...]  # the files that hold the samples, by number

    @abstractmethod
    def locate(self, rows: Index) -> tuple[Index, Index]:
        """Return file number and byte offset of each row; `rows` are int64 and in range."""


@dataclass(frozen=True)
class Strided(Placement):
    """Sample i lies at byte `offset + i * stride` of the only file; a small stride makes samples overlap."""

    offset: int
    stride: int

    def locate(self, rows: Index) -> tuple[Index, Index]:
        """Return file 0 and each row's offset."""
        return np.zeros(len(rows), np.int64), self.offset + rows * self.stride


class Spans(Placement):
    """Samples of different lengths, each contiguous and stored as in memory."""

    @abstractmethod
    def edges(self, samples: int, starts: Index) -> tuple[Index, Index]:
        """Return the positions at which each of the first `samples` begins and ends.

        `starts` are the positions at which the files begin.
        """


@dataclass(frozen=True, eq=False)
class AdjacentSpans(Spans):
    """Samples of different lengths in the only file, one after the other."""

    offset: int  # byte at which the first element lies
    stride: int  # bytes per unit of length
    offsets: Index  # sample i has the elements `offsets[i]` to `offsets[i + 1]`, none if they are equal

    def locate(self, rows: Index) -> tuple[Index, Index]:
        """Return file 0 and the offset of each row's first element."""
        return np.zeros(len(rows), np.int64), self.offset + self.offsets[rows] * self.stride

    def edges(self, samples: int, starts: Index) -> tuple[Index, Index]:
        """Return where each sample begins, and where it ends: where the next begins."""
        edges = starts[0] + self.offset + np.asarray(self.offsets[: samples + 1]) * self.stride
        return edges[:-1], edges[1:]


@dataclass(frozen=True, eq=False)
class ListedSpans(Spans):
    """Samples of different lengths at listed places, like `Listed`."""

    file: Index  # number of each sample's file
    offset: Index  # first byte of each sample with its head
    size: Index  # bytes of each sample with its head
    within: int = 0  # bytes of the head, behind which the field begins

    def locate(self, rows: Index) -> tuple[Index, Index]:
        """Return the file and the listed offset of each row."""
        return np.asarray(self.file[rows]), np.asarray(self.offset[rows] + self.within)

    def edges(self, samples: int, starts: Index) -> tuple[Index, Index]:
        """Return where each sample begins behind its head, and where it ends."""
        offset = np.asarray(self.offset[:samples]) + starts[self.file[:samples]]
        return offset + self.within, offset + self.size[:samples]


class _Partitioned:
    """Rows in consecutive parts, given by the `first` row of each part."""

    first: Index

    def number(self, rows: Index) -> Index:
        """Return the number of each row's part."""
        if self._equal is None:
            return np.asarray(np.searchsorted(self.first, rows, side="right") - 1)
        return np.asarray(np.minimum(rows // self._equal, len(self.first) - 1))

    def of_rows(self, values: Index, rows: Index) -> Index:
        """Return each row's entry of `values`, which has one entry per part.

        Uses as few NumPy calls as possible, because each releases and retakes the GIL.
        """
        if self._equal is None:
            return np.asarray(np.take(values, self.number(rows)))
        return np.asarray(np.take(values, rows // self._equal, mode="clip"))

    @cached_property
    def _equal(self) -> int | None:
        """Rows per part if all but the last are equal; a division takes a tenth of a search's time."""
        rows = int(self.first[1]) if len(self.first) > 1 else 0
        return rows if rows > 0 and (self.first == np.arange(len(self.first)) * rows).all() else None


@dataclass(frozen=True, eq=False)
class Chunked(_Partitioned, Placement):
    """Chunks of consecutive samples at a fixed stride."""

    first: Index  # first row of each chunk, in row order; the first entry is 0
    file: Index  # file number of each chunk
    offset: Index  # byte offset of each chunk's first sample
    stride: int  # bytes from one sample to the next within a chunk

    def locate(self, rows: Index) -> tuple[Index, Index]:
        """Return file number and offset of each row, from its chunk."""
        chunk = self.number(rows)
        return self.file[chunk], self.offset[chunk] + (rows - self.first[chunk]) * self.stride


@dataclass(frozen=True, eq=False)
class Listed(Placement):
    """A byte `offset` and a `file` number per row; the arrays may be maps of a file.

    The field begins `within` bytes after the offset, so that several fields can share one list.
    """

    file: Index
    offset: Index
    within: int = 0

    def locate(self, rows: Index) -> tuple[Index, Index]:
        """Return the listed file number and offset of each row."""
        return np.asarray(self.file[rows]), np.asarray(self.offset[rows] + self.within)


@dataclass(frozen=True, eq=False)
class Blocks(_Partitioned):
    """Rows of `fields` that are stored encoded, block by block.

    ``decode(number, stored, out)`` fills `out` (field → C-contiguous array with the block's rows; a subset of
    `fields`) from the stored bytes of block `number`, and raises CorruptArtifact if they are damaged. It is
    called from several threads at once, and releases the GIL while it decodes.
    """

    fields: tuple[str, ...]  # fields that the blocks hold
    files: tuple[Path, ...]  # the files that hold the blocks, by number
    first: Index  # first row of each block, in row order, from 0 on; a block ends where the next begins
    file: Index  # file number of each block
    offset: Index  # byte offset of each block
    stored: Index  # stored bytes of each block
    decode: Decode
