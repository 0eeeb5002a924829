"""Reader of rows that are stored in chunks of consecutive samples."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.formats import Array, Reader, Schema

Index = npt.NDArray[np.int64]


class ChunkedReader(Reader):
    """Base class of readers of chunks; a subclass copies rows out of one chunk.

    Parameters
    ----------
    schema : Schema
        Samples and fields.
    first : int64 array
        First row of each chunk; the first entry is 0, and each chunk ends where the next begins.
    """

    def __init__(self, schema: Schema, first: Index) -> None:
        super().__init__(schema)
        self._first = first

    @abstractmethod
    def _copy(self, name: str, chunk: int, rows: slice | Index, target: Any, slots: slice | Index) -> None:
        """Copy `rows` of a chunk, counted from the chunk's first, to `slots` of the target."""

    @abstractmethod
    def _check_open(self) -> None:
        """Raise ValueError if the reader is closed."""

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        self._check_open()
        for chunk, low, high in self._pieces(start, stop):
            first = int(self._first[chunk])
            for name, target in out.items():
                rows, slots = slice(low - first, high - first), slice(low - start, high - start)
                self._copy(name, chunk, rows, target, slots)

    def _read_rows(self, rows: Index, out: Mapping[str, Array]) -> None:
        self._check_open()
        chunks = np.searchsorted(self._first, rows, side="right") - 1
        order = np.argsort(chunks, kind="stable")
        edges = np.flatnonzero(np.diff(chunks[order], prepend=-1, append=-1)).tolist()
        for low, high in itertools.pairwise(edges):
            slots = order[low:high]
            chunk = int(chunks[slots[0]])
            local = rows[slots] - self._first[chunk]
            for name, target in out.items():
                self._copy(name, chunk, local, target, slots)

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield each chunk with rows in start..stop-1, and the range of these rows, as (chunk, low, high)."""
        chunk = int(np.searchsorted(self._first, start, side="right")) - 1
        while start < stop:
            end = int(self._first[chunk + 1]) if chunk + 1 < len(self._first) else len(self)
            yield chunk, start, min(end, stop)
            start, chunk = end, chunk + 1
