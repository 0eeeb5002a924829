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
    """Locations of one field's samples, each contiguous and stored as in memory.

    Attributes
    ----------
    files : tuple of Path
        The files that hold the samples, by number.
    """

    files: tuple[Path, ...]

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
    """Samples of different lengths in the only file, one after the other.

    Attributes
    ----------
    offset : int
        Byte at which the first element lies.
    stride : int
        Bytes per unit of length.
    offsets : int64 array
        Sample i has the elements `offsets[i]` to `offsets[i + 1]`, and so is empty if these are equal.
    """

    offset: int
    stride: int
    offsets: Index

    def locate(self, rows: Index) -> tuple[Index, Index]:
        """Return file 0 and the offset of each row's first element."""
        return np.zeros(len(rows), np.int64), self.offset + self.offsets[rows] * self.stride

    def edges(self, samples: int, starts: Index) -> tuple[Index, Index]:
        """Return where each sample begins, and where it ends: where the next begins."""
        edges = starts[0] + self.offset + np.asarray(self.offsets[: samples + 1]) * self.stride
        return edges[:-1], edges[1:]


@dataclass(frozen=True, eq=False)
class ListedSpans(Spans):
    """Samples of different lengths at listed places, like `Listed`.

    Attributes
    ----------
    file : int64 array
        Number of each sample's file.
    offset, size : int64 array
        First byte and bytes of each sample with its head.
    within : int
        Bytes of the head, behind which the field begins.
    """

    file: Index
    offset: Index
    size: Index
    within: int = 0

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
    """Chunks of consecutive samples at a fixed stride.

    Attributes
    ----------
    first : int64 array
        First row of each chunk, in row order; the first entry is 0.
    file : int64 array
        File number of each chunk.
    offset : int64 array
        Byte offset of each chunk's first sample.
    stride : int
        Bytes from one sample to the next within a chunk.
    """

    first: Index
    file: Index
    offset: Index
    stride: int

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

    Attributes
    ----------
    fields : tuple of str
        Fields that the blocks hold.
    files : tuple of Path
        The files that hold the blocks, by number.
    first : int64 array
        First row of each block, in row order; the first entry is 0, and each block ends where the next
        begins.
    file, offset, stored : int64 array
        File number, byte offset and stored bytes of each block.
    decode : callable
        ``decode(number, stored, out)`` fills `out` (field → C-contiguous array with the block's rows; a
        subset of `fields`) from the stored bytes of block `number`, and raises CorruptArtifact if they
        are damaged. Called from several threads at once; releases the GIL while it decodes.
    """

    fields: tuple[str, ...]
    files: tuple[Path, ...]
    first: Index
    file: Index
    offset: Index
    stored: Index
    decode: Decode
