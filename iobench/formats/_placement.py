"""Where rows lie in files: as they are in memory (placements), or encoded, several to a block."""

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
    """Where the samples of one field lie, each in one piece and as it is in memory.

    `files`: the files that hold them, by number.
    """

    files: tuple[Path, ...]

    @abstractmethod
    def locate(self, rows: Index) -> tuple[Index, Index]:
        """The file number and the byte offset of each row; `rows` are int64 and in range."""


@dataclass(frozen=True)
class Strided(Placement):
    """Sample i is at `offset + i * stride` bytes of the only file."""

    offset: int
    stride: int

    def locate(self, rows: Index) -> tuple[Index, Index]:
        """File 0, and each row's offset."""
        return np.zeros(len(rows), np.int64), self.offset + rows * self.stride


class _Parted:
    """Rows in parts that follow each other, of which each has a `first` row."""

    first: Index

    def number(self, rows: Index) -> Index:
        """The number of each row's part."""
        if self._equal is None:
            return np.asarray(np.searchsorted(self.first, rows, side="right") - 1)
        return np.asarray(np.minimum(rows // self._equal, len(self.first) - 1))

    def of_rows(self, values: Index, rows: Index) -> Index:
        """What stands in a list, with an entry for each part, for the part of each row.

        By as few calls as there can be: each lets go of the interpreter's lock.
        """
        if self._equal is None:
            return np.asarray(np.take(values, self.number(rows)))
        return np.asarray(np.take(values, rows // self._equal, mode="clip"))

    @cached_property
    def _equal(self) -> int | None:
        """Rows in each part but the last, where they are equally many: a tenth of a search's time."""
        rows = int(self.first[1]) if len(self.first) > 1 else 0
        return rows if rows > 0 and (self.first == np.arange(len(self.first)) * rows).all() else None


@dataclass(frozen=True, eq=False)
class Chunked(_Parted, Placement):
    """Chunks of samples that follow each other at a fixed stride.

    Per chunk, in the order of rows: `first` row (chunk 0 begins at row 0), `file` number, byte `offset`
    of its first sample.
    """

    first: Index
    file: Index
    offset: Index
    stride: int

    def locate(self, rows: Index) -> tuple[Index, Index]:
        """The file and offset of each row, by its chunk."""
        chunk = self.number(rows)
        return self.file[chunk], self.offset[chunk] + (rows - self.first[chunk]) * self.stride


@dataclass(frozen=True, eq=False)
class Listed(Placement):
    """A byte `offset`, and a `file` number, for each row; arrays that may be maps of a file.

    The field begins `within` bytes behind the offset, for several fields that share a list.
    """

    file: Index
    offset: Index
    within: int = 0

    def locate(self, rows: Index) -> tuple[Index, Index]:
        """What is listed for each row."""
        return np.asarray(self.file[rows]), np.asarray(self.offset[rows] + self.within)


@dataclass(frozen=True, eq=False)
class Blocks(_Parted):
    """Rows of `fields` that are stored encoded, together, block by block.

    Per block, in the order of rows: `first` row (block 0 begins at row 0, and each block ends where the
    next begins), `file` number, byte `offset` and `stored` bytes. `decode(number, stored, out)` fills
    `out` (field → C-contiguous array with as many rows as the block has; a subset of `fields`) from the
    stored bytes of block `number`; CorruptArtifact where they are damaged. It is called from several
    threads at once, and lets go of the interpreter's lock while it decodes.
    """

    fields: tuple[str, ...]
    files: tuple[Path, ...]
    first: Index
    file: Index
    offset: Index
    stored: Index
    decode: Decode
