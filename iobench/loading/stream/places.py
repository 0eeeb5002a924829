"""The rows of several fields in one line of addresses over all files that hold them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from iobench.formats import Chunked, Listed, Placement, Schema, Strided, corrupt
from iobench.host.maps import side_by_side

Index = npt.NDArray[np.int64]

NEAR_BYTES = 64 << 10  # a gap of no more between rows is read along with them; less than is BETWEEN files


class Places:
    """Where each row of each field is: its position, in the files laid side by side.

    CorruptArtifact where a placement leads out of its files. `files` and `sizes` go by the same
    numbers, and so do `starts`, of which there is one more: where the last file ends.
    """

    def __init__(self, schema: Schema, placements: Mapping[str, Placement]) -> None:
        self.samples = schema.samples
        self.widths = {f.name: f.sample_bytes for f in schema.fields}
        self._placements = {f.name: placements[f.name] for f in schema.fields}
        paths = dict.fromkeys(path for place in self._placements.values() for path in place.files)
        self.files = tuple(paths)
        self.sizes = [path.stat().st_size for path in paths]
        self.starts = side_by_side(self.sizes)
        numbers = {path: number for number, path in enumerate(paths)}
        sizes = np.array(self.sizes, np.int64)
        self._starts, self._sizes, self._bases = {}, {}, {}
        for name, place in self._placements.items():
            of_field = [numbers[path] for path in place.files]
            self._starts[name], self._sizes[name] = self.starts[of_field], sizes[of_field]
            if not isinstance(place, Strided | Chunked):
                continue
            for rows in _ends(place, self.samples):
                self._check(name, *place.locate(rows))
            if isinstance(place, Chunked):  # where row 0 would be if all were as in this chunk
                begins = self._starts[name][place.file] + place.offset
                self._bases[name] = begins - place.first * place.stride

    def close(self) -> None:
        """Let go of lists, which may be maps of files: whatever is asked now is a ValueError."""
        self._placements.clear()

    def positions(self, name: str, rows: Index) -> Index:
        """Where rows begin, each in one piece."""
        place, starts = self._of(name), self._starts[name]
        if isinstance(place, Strided):
            return np.asarray(starts[0] + place.offset + rows * place.stride)
        if isinstance(place, Chunked):
            return np.asarray(self._bases[name][place.chunk(rows)] + rows * place.stride)
        if isinstance(place, Listed) and len(starts) == 1:
            return self._listed(name, place, rows)
        files, offsets = place.locate(rows)
        self._check(name, files, offsets)
        return np.asarray(offsets + starts[files])

    def _listed(self, name: str, place: Listed, rows: Index) -> Index:
        """As `positions`, of one file, for a third of the time."""
        offsets: Index = np.take(place.offset, rows) + place.within
        last = int(self._sizes[name][0]) - self.widths[name]
        if len(offsets) and (int(offsets.min()) < 0 or int(offsets.max()) > last):
            self._check(name, np.zeros_like(offsets), offsets)
        offsets += self._starts[name][0]
        return offsets

    def runs(self, name: str, start: int, stop: int) -> list[tuple[int, int]] | None:
        """Rows start..stop-1 as positions from which some follow each other, with how many do.

        None where that is not known without looking at each row.
        """
        place, first, width = self._of(name), self.dense(name), self.widths[name]
        if first is not None:
            return [(first + start * width, stop - start)]
        if not isinstance(place, Chunked) or place.stride != width:
            return None
        low, high = place.chunk(np.array([start, stop - 1])).tolist()
        edges = np.array([start, *place.first[low + 1 : high + 1].tolist(), stop])
        begins = self._bases[name][low : high + 1] + edges[:-1] * width
        return list(zip(begins.tolist(), np.diff(edges).tolist(), strict=True))

    def dense(self, name: str) -> int | None:
        """The position of row 0 where all rows follow each other without a gap, else None."""
        place = self._of(name)
        if not isinstance(place, Strided) or place.stride != self.widths[name]:
            return None
        return int(self._starts[name][0]) + place.offset

    def lattice(self, name: str) -> int | None:
        """What positions leave over when they are divided by the width, if all leave the same."""
        place, width = self._of(name), self.widths[name]
        if not isinstance(place, Strided | Chunked) or place.stride % width:
            return None
        firsts = np.zeros(1, np.int64) if isinstance(place, Strided) else place.first
        over = np.unique(self.positions(name, firsts) % width)
        return int(over[0]) if len(over) == 1 else None

    def compact(self, name: str) -> bool:
        """Whether a field's rows lie by themselves, not among those of others."""
        place = self._of(name)
        return isinstance(place, Strided | Chunked) and place.stride <= 2 * self.widths[name]

    def ranges(self, start: int, stop: int) -> tuple[Index, Index]:
        """Where the bytes of rows start..stop-1 of all fields begin and end, sorted and merged."""
        lows, highs = [], []
        for name, width in self.widths.items():
            runs = self.runs(name, start, stop)
            low = (
                np.array([begin for begin, _ in runs])
                if runs
                else self.positions(name, np.arange(start, stop))
            )
            lows.append(low)
            highs.append(low + (np.array([count for _, count in runs]) if runs else 1) * width)
        return merged(np.concatenate(lows), np.concatenate(highs), NEAR_BYTES)

    def within(self, position: int) -> tuple[int, int]:
        """The number of the file at a position, and the offset in it."""
        number = int(np.searchsorted(self.starts, position, side="right")) - 1
        return number, position - int(self.starts[number])

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


def _ends(place: Strided | Chunked, samples: int) -> list[Index]:
    """The first and the last rows of all its stretches."""
    if isinstance(place, Strided):
        return [np.array([0, samples - 1])]
    return [place.first, np.append(place.first[1:], samples) - 1]
