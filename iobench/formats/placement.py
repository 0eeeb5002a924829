"""Placement of rows in files: stored as in memory, or encoded in blocks; and how to scatter read bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from iobench.formats.schema import Array, raw_bytes

Index: TypeAlias = npt.NDArray[np.int64]
PIECE_ROWS = 1 << 17  # rows computed together, so that they stay in the CPU cache
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

    @property
    def chunks(self) -> tuple[Index, Index, Index]:
        """First row, file and offset of the only run of rows, as of `Chunked`."""
        return np.zeros(1, np.int64), np.zeros(1, np.int64), np.array([self.offset])


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

    @property
    def chunks(self) -> tuple[Index, Index, Index]:
        """First row, file and offset of each chunk."""
        return self.first, self.file, self.offset

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


def end_to_end(places: Sequence[Placement], lengths: Index) -> Placement:
    """Return the placement of the rows of several, the first `lengths` rows of each, one after the other."""
    files = tuple(file for place in places for file in place.files)
    bases = np.cumsum([0, *(len(place.files) for place in places[:-1])])
    starts = np.cumsum(lengths) - lengths
    strides = {place.stride if isinstance(place, Strided | Chunked) else None for place in places}
    if None not in strides and len(strides) == 1:
        chunks = [place.chunks for place in places if isinstance(place, Strided | Chunked)]
        first = np.concatenate([start + one[0] for start, one in zip(starts, chunks, strict=True)])
        file = np.concatenate([base + one[1] for base, one in zip(bases, chunks, strict=True)])
        offset = np.concatenate([offset for _, _, offset in chunks])
        return Chunked(files, first, file, offset, next(stride for stride in strides if stride is not None))
    numbers, offsets, sizes = list[Index](), list[Index](), list[Index]()
    for place, base, length in zip(places, bases, lengths.tolist(), strict=True):
        own, begins = place.locate(np.arange(length))
        numbers.append(own + base)
        offsets.append(begins)
        if isinstance(place, Spans):
            begins, ends = place.edges(length, np.zeros(len(place.files), np.int64))
            sizes.append(ends - begins)
    lists = np.concatenate(numbers), np.concatenate(offsets)
    return ListedSpans(files, *lists, np.concatenate(sizes)) if sizes else Listed(files, *lists)


def bounding_rows(place: Placement, samples: int) -> Iterator[Index]:
    """Yield rows such that all rows lie in the files if these do: ends of runs, or else all, in pieces."""
    if isinstance(place, Strided):
        yield np.array([0, samples - 1])
    elif isinstance(place, Chunked):
        yield place.first
        yield np.append(place.first[1:], samples) - 1
    else:
        yield from pieces_of(samples)


def pieces_of(samples: int) -> Iterator[Index]:
    """Yield all rows in pieces."""
    for low in range(0, samples, PIECE_ROWS):
        yield np.arange(low, min(low + PIECE_ROWS, samples))


FEW = 4  # up to this number, rows are copied one by one


class Positions(Protocol):
    """Positions of rows in an address space, and the bytes of a sample by field."""

    widths: dict[str, int]

    def positions(self, name: str, rows: Index) -> Index:
        """Return the position of each row of a field."""


@dataclass(frozen=True)
class ScatterPlan:
    """Requested rows of some fields, sorted by position.

    `starts` and `ends` are the positions of each row in the address space, `fields` the index of its field,
    and `slots` its index in the batch. `targets` is the memory of each field, one void item per row.
    """

    starts: Index
    ends: Index
    fields: Index
    slots: Index
    targets: list[Array]

    @classmethod
    def of(cls, addresses: Positions, rows: Index, out: Mapping[str, Array]) -> ScatterPlan:
        """Plan these rows of all fields of `out`."""
        positions = [addresses.positions(name, rows) for name in out]
        starts = np.concatenate(positions) if len(positions) > 1 else positions[0]
        widths = [addresses.widths[name] for name in out]
        order = sorted_by(starts)
        fields, slots = np.divmod(order, len(rows))
        starts = starts[order]
        targets = [
            np.frombuffer(raw_bytes(target), np.dtype((np.void, width)))
            for target, width in zip(out.values(), widths, strict=True)
        ]
        return cls(starts, starts + np.array(widths)[fields], fields, slots, targets)

    def part(self, low: int, high: int) -> ScatterPlan:
        """Return the plan of the rows `low` to `high` - 1."""
        if (low, high) == (0, len(self.starts)):
            return self
        some = slice(low, high)
        return ScatterPlan(
            self.starts[some], self.ends[some], self.fields[some], self.slots[some], self.targets
        )

    def take(self, low: int, high: int, got: Array, position: int) -> None:
        """Copy the rows `low` to `high` - 1 from bytes that begin at a position."""
        if len(self.targets) == 1:
            self._take(0, slice(low, high), got, position)
            return
        for number in range(len(self.targets)):
            chosen = low + np.flatnonzero(self.fields[low:high] == number)
            if len(chosen):
                self._take(number, chosen, got, position)

    def _take(self, field: int, chosen: slice | Index, got: Array, position: int) -> None:
        into, slots = self.targets[field], self.slots[chosen]
        row, at = into.dtype, self.starts[chosen] - position
        width = row.itemsize
        if len(at) <= FEW:
            for slot, begin in zip(slots.tolist(), at.tolist(), strict=True):
                into[slot : slot + 1] = np.frombuffer(got, row, 1, begin)  # `into[slot] =` would copy twice
        elif int(at[-1]) - int(at[0]) == (len(at) - 1) * width and (np.diff(at) == width).all():
            into[slots] = np.frombuffer(got, row, len(at), int(at[0]))
        else:  # rows begin at any byte
            every: Array = np.ndarray((len(got) - width + 1,), row, got, strides=(1,))
            into[slots] = every[at]


def sorted_by(rows: Index) -> Index:
    """Return the stable argsort of rows, by digits of 16 bits: five times as fast as NumPy's of int64."""
    order = np.arange(len(rows))
    for shift in range(0, max(1, int(rows.max()).bit_length()), 16):
        digit = (rows >> shift & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digit[order], kind="stable")]
    return order
