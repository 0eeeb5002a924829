"""One address space over all files of a dataset, and the positions of rows in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from iobench.base.errors import corrupt
from iobench.formats import Chunked, Index, Listed, Placement, Schema, Strided
from iobench.formats.placement import bounding_rows, pieces_of
from iobench.host.maps import side_by_side
from iobench.host.memory import PAGE

Locate: TypeAlias = Callable[[Index], Index]

MAX_LISTED = 8 << 20  # maximum number of rows whose positions are kept in memory
NEAR_BYTES = 64 << 10  # gaps up to this size are read along with the rows; smaller than BETWEEN files


class AddressSpace(ABC):
    """Files side by side in one address space. An address in it is called a position (bytes, int64).

    `widths` are the bytes of a sample by field, `sizes` those of the `files`. `starts` holds the position of
    each file's first byte and, as one item more, the end of the last file.
    """

    def __init__(self, schema: Schema, paths: Iterable[Path]) -> None:
        self.samples = schema.samples
        self.widths = {f.name: f.sample_bytes for f in schema.fields}
        self.files = tuple(dict.fromkeys(paths))
        self.sizes = [path.stat().st_size for path in self.files]
        self.starts = side_by_side(self.sizes)
        self._numbers = {path: number for number, path in enumerate(self.files)}

    def check_inside(
        self, name: str, paths: Sequence[Path], files: Index, offsets: Index, lengths: Index | int
    ) -> None:
        """Raise CorruptArtifact unless each of these ranges of bytes lies in its file of `paths`."""
        if len(files) and (int(files.min()) < 0 or int(files.max()) >= len(paths)):
            expected = f"{name} in {len(paths)} files"
            raise corrupt(paths[0].parent, expected, "a part of it in another one", kind="bad-placement")
        sizes, ends = np.array(self.sizes, np.int64)[self.numbers(paths)][files], offsets + lengths
        wrong = (offsets < 0) | (ends < offsets) | (ends > sizes)
        if wrong.any():
            first = int(wrong.argmax())
            path, low, end = paths[int(files[first])], int(offsets[first]), int(ends[first])
            if low < 0 or end < low:
                expected = f"{name} from byte 0 on, in rising order"
                raise corrupt(path, expected, f"bytes {low} to {end}", kind="bad-placement")
            raise corrupt(path, f"{end} bytes", f"{int(sizes[first])} bytes", kind="truncated")

    def within(self, position: int) -> tuple[int, int]:
        """Return the number of the file at a position and the offset in that file."""
        number = int(np.searchsorted(self.starts, position, side="right")) - 1
        return number, position - int(self.starts[number])

    def numbers(self, paths: Iterable[Path]) -> list[int]:
        """Return the numbers of these files."""
        return [self._numbers[path] for path in paths]

    @abstractmethod
    def byte_ranges(self, name: str, rows: Index) -> tuple[Index, Index]:
        """Return start and end positions of the stored bytes of these rows of a field, in any order."""

    def stretches(self, name: str, start: int, stop: int) -> tuple[Index, Index]:
        """Return start and end positions of the bytes of the rows `start` to `stop` - 1 of a field."""
        return self.byte_ranges(name, np.arange(start, stop))

    def ranges(self, start: int, stop: int, names: Sequence[str]) -> tuple[Index, Index]:
        """Return the sorted, merged position ranges of the rows `start` to `stop` - 1 of these fields."""
        lows, highs = zip(*(self.stretches(name, start, stop) for name in names), strict=True)
        return merged(np.concatenate(lows), np.concatenate(highs), NEAR_BYTES)

    def pages(self, rows: Index, names: Sequence[str]) -> tuple[Index, Index]:
        """Return the sorted, merged position ranges, in whole pages, of these rows of these fields."""
        lows, highs = zip(*(self.byte_ranges(name, rows) for name in names), strict=True)
        low, high = np.concatenate(lows) // PAGE * PAGE, -(-np.concatenate(highs) // PAGE) * PAGE
        return merged(low, high, NEAR_BYTES)


class RowAddresses(AddressSpace):
    """Positions of the rows of fields that are stored as they are in memory.

    Raises CorruptArtifact if a placement leads out of its files.
    """

    def __init__(self, schema: Schema, placements: Mapping[str, Placement]) -> None:
        self._placements = {f.name: placements[f.name] for f in schema.fields}
        super().__init__(schema, (path for place in self._placements.values() for path in place.files))
        self._starts, self._bases = {}, {}
        self._listed: dict[str, Index] = {}  # positions: a look-up takes a third of that in two lists
        for name, place in self._placements.items():
            self._starts[name] = self.starts[self.numbers(place.files)]
            for rows in bounding_rows(place, self.samples):
                self.check_inside(name, place.files, *place.locate(rows), self.widths[name])
            if isinstance(place, Listed) and len(place.files) > 1 and self.samples <= MAX_LISTED:
                every = [self.positions(name, rows) for rows in pieces_of(self.samples)]
                self._listed[name] = np.concatenate(every)
            if isinstance(place, Chunked):  # position of row 0 if all rows were placed as in this chunk
                begins = self._starts[name][place.file] + place.offset
                self._bases[name] = begins - place.first * place.stride

    def close(self) -> None:
        """Release the lists, which may be maps of files. Later calls raise ValueError."""
        self._placements.clear()
        self._listed.clear()

    def positions(self, name: str, rows: Index) -> Index:
        """Return the position of each of these rows."""
        place, starts = self._of(name), self._starts[name]
        if isinstance(place, Strided):
            return np.asarray(starts[0] + place.offset + rows * place.stride)
        if isinstance(place, Chunked):
            positions = place.of_rows(self._bases[name], rows)
            positions += rows * place.stride
            return positions
        if name in self._listed:
            return np.asarray(np.take(self._listed[name], rows))
        if isinstance(place, Listed) and len(starts) == 1:
            return np.asarray(np.take(place.offset, rows) + (place.within + starts[0]))
        files, offsets = place.locate(rows)
        return np.asarray(offsets + starts[files])

    def runs(self, name: str, start: int, stop: int, most: int | None = None) -> list[tuple[int, int]] | None:
        """Return the rows `start` to `stop` - 1 as runs of adjacent rows: position and number of rows.

        None if that requires a look at each row, or if there are more than `most`.
        """
        place, first, width = self._of(name), self.start_if_contiguous(name), self.widths[name]
        if first is not None:
            return [(first + start * width, stop - start)]
        if not isinstance(place, Chunked) or place.stride != width:
            return None
        low, high = place.number(np.array([start, stop - 1])).tolist()
        if most is not None and high - low >= most:
            return None
        edges = np.array([start, *place.first[low + 1 : high + 1].tolist(), stop])
        begins = self._bases[name][low : high + 1] + edges[:-1] * width
        return list(zip(begins.tolist(), np.diff(edges).tolist(), strict=True))

    def start_if_contiguous(self, name: str) -> int | None:
        """Return the position of row 0 if all rows are adjacent, else None."""
        place = self._of(name)
        if not isinstance(place, Strided) or place.stride != self.widths[name]:
            return None
        return int(self._starts[name][0]) + place.offset

    def common_remainder(self, name: str, divisor: int) -> int | None:
        """Return the remainder of all positions divided by a number, or None if they differ."""
        place = self._of(name)
        if not isinstance(place, Listed) and getattr(place, "stride", 1) % divisor:
            return None
        over: int | None = None
        for rows in _regular(place, self.samples):
            left = self.positions(name, rows) % divisor
            over = int(left[0]) if over is None else over
            if (left != over).any():
                return None
        return over

    def elements(self, name: str, over: int) -> Locate:
        """Return a function from rows to indices of elements of the field's width, from `over` on.

        Requires that all rows are such elements, see `common_remainder`. The function makes as few NumPy
        calls as possible, because each releases the GIL and other threads take it.
        """
        place, width = self._of(name), self.widths[name]
        if isinstance(place, Chunked):
            bases, step = (self._bases[name] - over) // width, place.stride // width
            return lambda rows: np.add(place.of_rows(bases, rows), rows if step == 1 else rows * step)
        if isinstance(place, Listed) and self.samples <= MAX_LISTED:
            every = [(self.positions(name, rows) - over) // width for rows in pieces_of(self.samples)]
            return partial(np.take, np.concatenate(every))
        return lambda rows: (self.positions(name, rows) - over) // width

    def is_contiguous(self, name: str) -> bool:
        """Return True if a field's rows lie close together, not between those of other fields."""
        place = self._of(name)
        return isinstance(place, Strided | Chunked) and place.stride <= 2 * self.widths[name]

    def byte_ranges(self, name: str, rows: Index) -> tuple[Index, Index]:
        """Return start and end positions of these rows of a field."""
        low = self.positions(name, rows)
        return low, low + self.widths[name]

    def stretches(self, name: str, start: int, stop: int) -> tuple[Index, Index]:
        """Return start and end positions of these rows of a field, adjacent rows together."""
        if (runs := self.runs(name, start, stop)) is None:
            return super().stretches(name, start, stop)
        low, count = np.array(runs).T
        return low, low + count * self.widths[name]

    def _of(self, name: str) -> Placement:
        if name not in self._placements:
            raise ValueError("this reader is closed")
        return self._placements[name]


def merged(low: Index, high: Index, near: int = 0) -> tuple[Index, Index]:
    """Sort ranges and merge those that overlap or are at most `near` bytes apart."""
    order = np.argsort(low, kind="stable")
    low, high = low[order], np.maximum.accumulate(high[order])
    first = np.flatnonzero(np.concatenate(([True], low[1:] > high[:-1] + near)))
    return low[first], high[np.append(first[1:], len(low)) - 1]


def _regular(place: Placement, samples: int) -> Iterator[Index]:
    """Yield rows that determine the remainders of all positions if the divisor divides the stride."""
    if isinstance(place, Strided):
        yield np.zeros(1, np.int64)
    elif isinstance(place, Chunked):
        yield place.first
    else:
        yield from pieces_of(samples)
