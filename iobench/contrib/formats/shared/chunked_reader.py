"""Reader of rows that are stored in chunks of consecutive samples."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.formats import Array, Batch, Ragged, Reader, Rows, Schema, joined, map_values

Index = npt.NDArray[np.int64]


class ChunkedReader(Reader):
    """Base class of readers of chunks; a subclass copies rows out of one chunk.

    `first`, int64, is the first row of each chunk, from 0 on; each chunk ends where the next begins.
    """

    def __init__(self, schema: Schema, first: Index) -> None:
        super().__init__(schema)
        self._first = first

    @abstractmethod
    def _copy(self, name: str, chunk: int, rows: slice | Index, target: Any, slots: slice | Index) -> None:
        """Copy `rows` of a chunk, counted from the chunk's first, to `slots` of the target."""

    @abstractmethod
    def _part(self, name: str, chunk: int, rows: slice | Index) -> Ragged:
        """Return `rows` of a ragged field in a chunk, counted from the chunk's first."""

    @abstractmethod
    def _check_open(self) -> None:
        """Raise ValueError if the reader is closed."""

    def batch(self, rows: Rows | Sequence[int]) -> Batch:
        """Return the rows in new arrays, ragged fields as `Ragged`; IndexError outside 0..len-1."""
        checked, count = self._checked(rows)
        ragged = self.schema.ragged
        if not ragged:
            return super().batch(checked)
        self._check_open()
        batch: dict[str, Any] = self.schema.fixed.empty(count)
        none: dict[str, Any] = self.schema.empty(0)
        parts = {field.name: [none[field.name]] for field in ragged}
        came = [np.empty(0, np.int64)]
        for chunk, local, slots in self._pieces(checked):
            for name, target in batch.items():
                self._copy(name, chunk, local, target, slots)
            for name in parts:
                part = self._part(name, chunk, local)
                parts[name].append(map_values(np.array, part) if isinstance(local, slice) else part)
            came.append(np.arange(count)[slots])
        for name, some in parts.items():
            whole = joined(some)
            batch[name] = whole if isinstance(checked, slice) else whole[np.argsort(np.concatenate(came))]
        return {field.name: batch[field.name] for field in self.schema.fields}

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        self._read_rows(slice(start, stop), out)

    def _read_rows(self, rows: Rows, out: Mapping[str, Array]) -> None:
        self._check_open()
        for chunk, local, slots in self._pieces(rows):
            for name, target in out.items():
                self._copy(name, chunk, local, target, slots)

    def _pieces(self, rows: Rows) -> Iterator[tuple[int, slice | Index, slice | Index]]:
        """Yield each chunk that holds some of the rows, these rows from its first on, and their slots."""
        if isinstance(rows, slice):
            yield from self._slices(rows.start, rows.stop)
            return
        chunks = np.searchsorted(self._first, rows, side="right") - 1
        order = np.argsort(chunks, kind="stable")
        edges = np.flatnonzero(np.diff(chunks[order], prepend=-1, append=-1)).tolist()
        for low, high in itertools.pairwise(edges):
            slots = order[low:high]
            chunk = int(chunks[slots[0]])
            yield chunk, rows[slots] - self._first[chunk], slots

    def _slices(self, start: int, stop: int) -> Iterator[tuple[int, slice, slice]]:
        low, chunk = start, int(np.searchsorted(self._first, start, side="right")) - 1
        while low < stop:
            first = int(self._first[chunk])
            end = int(self._first[chunk + 1]) if chunk + 1 < len(self._first) else len(self)
            high = min(end, stop)
            yield chunk, slice(low - first, high - first), slice(low - start, high - start)
            low, chunk = end, chunk + 1
