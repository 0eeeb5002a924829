"""The rows of several fields in one line of addresses over all files that hold them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from iobench.base.errors import (
    corrupt,
)
from iobench.formats import Chunked, Listed, Placement, Schema, Strided
from iobench.host.maps import side_by_side
from iobench.host.memory import PAGE

Index = npt.NDArray[np.int64]
Locate: TypeAlias = Callable[[Index], Index]

PIECE_ROWS = 1 << 17  # looked at together: what stays in the processor's cache
MAX_LISTED = 8 << 20  # rows whose positions are kept in memory
NEAR_BYTES = 64 << 10  # a gap of no more between rows is read along with them; less than is BETWEEN files


class AddressSpace(ABC):
    """Files laid side by side in one line of addresses, called positions, and rows somewhere in them.

    `files` and `sizes` go by the same numbers, and so do `starts`, of which there is one more: where
    the last file ends. `widths`: the bytes of a sample of each field.
    """

    def __init__(self, schema: Schema, paths: Iterable[Path]) -> None:
        self.samples = schema.samples
        self.widths = {f.name: f.sample_bytes for f in schema.fields}
        self.files = tuple(dict.fromkeys(paths))
        self.sizes = [path.stat().st_size for path in self.files]
        self.starts = side_by_side(self.sizes)
        self._numbers = {path: number for number, path in enumerate(self.files)}

    def within(self, position: int) -> tuple[int, int]:
        """The number of the file at a position, and the offset in it."""
        number = int(np.searchsorted(self.starts, position, side="right")) - 1
        return number, position - int(self.starts[number])

    def numbers(self, paths: Iterable[Path]) -> list[int]:
        """Which of the files these are."""
        return [self._numbers[path] for path in paths]

    @abstractmethod
    def byte_ranges(self, name: str, rows: Index) -> tuple[Index, Index]:
        """Where what is stored of these rows of a field begins and ends, in any order."""

    @abstractmethod
    def ranges(self, start: int, stop: int, names: Sequence[str]) -> tuple[Index, Index]:
        """Where what is stored of rows start..stop-1 of these fields begins and ends, sorted and merged."""

    def pages(self, rows: Index, names: Sequence[str]) -> tuple[Index, Index]:
        """Where the pages of these rows of these fields begin and end, sorted and merged."""
        lows, highs = zip(*(self.byte_ranges(name, rows) for name in names), strict=True)
        low, high = np.concatenate(lows) // PAGE * PAGE, -(-np.concatenate(highs) // PAGE) * PAGE
        return merged(low, high, NEAR_BYTES)


class RowAddresses(AddressSpace):
    """Where each row of each field is: its position.

    CorruptArtifact where a placement leads out of its files.
    """

    def __init__(self, schema: Schema, placements: Mapping[str, Placement]) -> None:
        self._placements = {f.name: placements[f.name] for f in schema.fields}
        super().__init__(schema, (path for place in self._placements.values() for path in place.files))
        sizes = np.array(self.sizes, np.int64)
        self._starts, self._sizes, self._bases = {}, {}, {}
        self._listed: dict[str, Index] = {}  # positions, which cost a third of looking them up in two lists
        for name, place in self._placements.items():
            of_field = self.numbers(place.files)
            self._starts[name], self._sizes[name] = self.starts[of_field], sizes[of_field]
            for rows in _telling(place, self.samples):
                self._check(name, *place.locate(rows))
            if isinstance(place, Listed) and len(of_field) > 1 and self.samples <= MAX_LISTED:
                self._listed[name] = _joined(place, self._starts[name], self.samples)
            if isinstance(place, Chunked):  # where row 0 would be if all were as in this chunk
                begins = self._starts[name][place.file] + place.offset
                self._bases[name] = begins - place.first * place.stride

    def close(self) -> None:
        """Let go of lists, which may be maps of files: whatever is asked now is a ValueError."""
        self._placements.clear()
        self._listed.clear()

    def positions(self, name: str, rows: Index) -> Index:
        """Where rows begin, each in one piece."""
        place, starts = self._of(name), self._starts[name]
        if isinstance(place, Strided):
            return np.asarray(starts[0] + place.offset + rows * place.stride)
        if isinstance(place, Chunked):
            found = place.of_rows(self._bases[name], rows)
            found += rows * place.stride
            return found
        if name in self._listed:
            return np.asarray(np.take(self._listed[name], rows))
        if isinstance(place, Listed) and len(starts) == 1:
            return np.asarray(np.take(place.offset, rows) + (place.within + starts[0]))
        files, offsets = place.locate(rows)
        return np.asarray(offsets + starts[files])

    def runs(self, name: str, start: int, stop: int) -> list[tuple[int, int]] | None:
        """Rows start..stop-1 as positions from which some follow each other, with how many do.

        None where that is not known without looking at each row.
        """
        place, first, width = self._of(name), self.start_if_contiguous(name), self.widths[name]
        if first is not None:
            return [(first + start * width, stop - start)]
        if not isinstance(place, Chunked) or place.stride != width:
            return None
        low, high = place.number(np.array([start, stop - 1])).tolist()
        edges = np.array([start, *place.first[low + 1 : high + 1].tolist(), stop])
        begins = self._bases[name][low : high + 1] + edges[:-1] * width
        return list(zip(begins.tolist(), np.diff(edges).tolist(), strict=True))

    def start_if_contiguous(self, name: str) -> int | None:
        """The position of row 0 where all rows follow each other without a gap, else None."""
        place = self._of(name)
        if not isinstance(place, Strided) or place.stride != self.widths[name]:
            return None
        return int(self._starts[name][0]) + place.offset

    def common_remainder(self, name: str) -> int | None:
        """What positions leave over when they are divided by the width, if all leave the same."""
        place, width = self._of(name), self.widths[name]
        if not isinstance(place, Listed) and getattr(place, "stride", 1) % width:
            return None
        over: int | None = None
        for rows in _regular(place, self.samples):
            left = self.positions(name, rows) % width
            over = int(left[0]) if over is None else over
            if (left != over).any():
                return None
        return over

    def elements(self, name: str, over: int) -> Locate:
        """What tells the numbers of rows as elements of the field's width, from position `over` on.

        Where all rows are such elements, as `common_remainder` knows. It calls as little as there can be: each call
        lets go of the interpreter's lock, and other threads have it meanwhile.
        """
        place, width = self._of(name), self.widths[name]
        if isinstance(place, Chunked):
            bases, step = (self._bases[name] - over) // width, place.stride // width
            return lambda rows: np.add(place.of_rows(bases, rows), rows if step == 1 else rows * step)
        if isinstance(place, Listed) and self.samples <= MAX_LISTED:
            every = [(self.positions(name, rows) - over) // width for rows in _pieces(self.samples)]
            return partial(np.take, np.concatenate(every))
        return lambda rows: (self.positions(name, rows) - over) // width

    def is_contiguous(self, name: str) -> bool:
        """Whether a field's rows lie by themselves, not among those of others."""
        place = self._of(name)
        return isinstance(place, Strided | Chunked) and place.stride <= 2 * self.widths[name]

    def byte_ranges(self, name: str, rows: Index) -> tuple[Index, Index]:
        """Where these rows of a field begin and end."""
        low = self.positions(name, rows)
        return low, low + self.widths[name]

    def ranges(self, start: int, stop: int, names: Sequence[str]) -> tuple[Index, Index]:
        """Where the bytes of rows start..stop-1 of these fields begin and end, sorted and merged."""
        lows, highs = [], []
        for name in names:
            runs, width = self.runs(name, start, stop), self.widths[name]
            if runs is not None:
                low, count = np.array(runs).T
            else:
                low, count = self.positions(name, np.arange(start, stop)), np.int64(1)
            lows.append(low)
            highs.append(low + count * width)
        return merged(np.concatenate(lows), np.concatenate(highs), NEAR_BYTES)

    def _of(self, name: str) -> Placement:
        if name not in self._placements:
            raise ValueError("this reader is closed")
        return self._placements[name]

    def _check(self, name: str, files: Index, offsets: Index) -> None:
        """CorruptArtifact where a row would not lie in one of the field's files."""
        paths, sizes, width = self._placements[name].files, self._sizes[name], self.widths[name]
        if len(files) and (int(files.min()) < 0 or int(files.max()) >= len(paths)):
            raise corrupt(paths[0].parent, f"{name} in {len(paths)} files", "a row in another one")
        wrong = (offsets < 0) | (offsets + width > sizes[files])
        if wrong.any():
            first = int(wrong.argmax())
            number, low = int(files[first]), int(offsets[first])
            expected = f"{name} from byte 0 on" if low < 0 else f"{low + width} bytes"
            raise corrupt(paths[number], expected, f"{low if low < 0 else int(sizes[number])} bytes")


def merged(low: Index, high: Index, near: int = 0) -> tuple[Index, Index]:
    """Ranges in order, those that meet or are at most so far apart made into one."""
    order = np.argsort(low, kind="stable")
    low, high = low[order], np.maximum.accumulate(high[order])
    first = np.flatnonzero(np.concatenate(([True], low[1:] > high[:-1] + near)))
    return low[first], high[np.append(first[1:], len(low)) - 1]


def _telling(place: Placement, samples: int) -> Iterator[Index]:
    """Rows of which all are in the files if these are: ends of byte_ranges, or else each, some at a time."""
    if isinstance(place, Strided):
        yield np.array([0, samples - 1])
    elif isinstance(place, Chunked):
        yield place.first
        yield np.append(place.first[1:], samples) - 1
    else:
        yield from _pieces(samples)


def _regular(place: Placement, samples: int) -> Iterator[Index]:
    """Rows that tell what all positions leave over, at a stride of whole widths: some at a time."""
    if isinstance(place, Strided):
        yield np.zeros(1, np.int64)
    elif isinstance(place, Chunked):
        yield place.first
    else:
        yield from _pieces(samples)


def _joined(place: Placement, starts: Index, samples: int) -> Index:
    """The position of each row."""
    found = np.empty(samples, np.int64)
    for rows in _pieces(samples):
        files, offsets = place.locate(rows)
        found[rows[0] : rows[-1] + 1] = offsets + starts[files]
    return found


def _pieces(samples: int) -> Iterator[Index]:
    """All rows, some at a time."""
    for low in range(0, samples, PIECE_ROWS):
        yield np.arange(low, min(low + PIECE_ROWS, samples))
