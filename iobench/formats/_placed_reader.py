"""Reading rows by where they lie: what formats that keep samples as records in files have in common."""

from __future__ import annotations

import mmap
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.base.errors import (
    corrupt,
)
from iobench.formats._placement import Blocks, Index, Placement
from iobench.formats._reader import Convert, LoadOrBuild, Reader, identity
from iobench.formats._schema import Array, Schema

MAPPED = 128  # files of one reader at once: each takes a descriptor
PIECE_BYTES = 256 << 10  # rows that are gathered together pass through the processor's own cache
WINDOW_BYTES = 16 << 10  # rows of more are faster copied one by one


class Maps:
    """Files as read-only arrays of bytes: the first 128 are mapped at once, others when asked for."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = tuple(files)
        self._lock = threading.Lock()
        self._mapped: OrderedDict[int, Array] | None = OrderedDict()
        for number in range(min(MAPPED, len(self.files))):
            self[number]

    def __getitem__(self, number: int) -> Array:
        with self._lock:
            if self._mapped is None:
                raise ValueError("this reader is closed")
            found = self._mapped.get(number)
            if found is None:
                if len(self._mapped) >= MAPPED:
                    self._mapped.popitem(last=False)
                found = self._mapped[number] = map_bytes(self.files[number])
            return found

    def close(self) -> None:
        """Drop the maps; they go when the last view of them does."""
        with self._lock:
            self._mapped = None


def map_bytes(path: Path) -> Array:
    """A file's bytes as a read-only uint8 array over a map; CorruptArtifact where it is no file or empty."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # to open a pipe would be to wait
            raise corrupt(path, "a file", "something else")
        with open(path, "rb") as opened:
            return np.frombuffer(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except ValueError as error:
        raise corrupt(path, "a file with content", error) from error
    except FileNotFoundError as error:
        raise corrupt(path, "a file", "no such file") from error
    except NotADirectoryError as error:
        raise corrupt(path, "a file", "a path through a file") from error


def windows(stored: Array, width: int) -> Array:
    """Every run of `width` bytes of a flat uint8 array, by where it begins, as one item; no copy."""
    view: Array = np.ndarray((max(0, len(stored) - width + 1),), f"V{width}", stored.data, strides=(1,))
    return view


def runs(stored: Array, offsets: Index, width: int) -> Iterator[tuple[slice, Array]]:
    """The `width` bytes at each offset, uint8 (some, width), piece by piece, and which offsets they are."""
    step = max(1, PIECE_BYTES // width)
    view = windows(stored, width)
    for low in range(0, len(offsets), step):
        some = slice(low, min(low + step, len(offsets)))
        yield some, view[offsets[some]].view(np.uint8).reshape(-1, width)


@dataclass(frozen=True)
class FieldLocations:
    """Where the fields of a reader lie: as they are in memory, or encoded."""

    placement: Mapping[str, Placement] = field(default_factory=dict)
    blocks: Sequence[Blocks] = ()


def _closed(load_or_build: LoadOrBuild) -> FieldLocations:
    raise ValueError("this reader is closed")


class PlacedReader(Reader):
    """Copies or decodes rows out of mapped files, from where `find` says that they lie.

    All placements and blocks are of the files of `maps`. `find` is called once, when rows are first
    asked for; what takes long in it is for `LoadOrBuild`.
    """

    def __init__(self, schema: Schema, maps: Maps, find: Callable[[LoadOrBuild], FieldLocations]) -> None:
        super().__init__(schema)
        self._maps = maps
        self._find = find
        self._lock = threading.Lock()
        self._known: FieldLocations | None = None

    def placement(self) -> Mapping[str, Placement]:
        """Where the fields lie that are stored as they are in memory."""
        return self._found().placement

    def blocks(self) -> Sequence[Blocks]:
        """Where the fields lie that are stored encoded."""
        return self._found().blocks

    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """One sample: views of the files where it lies there as in memory, else fresh arrays."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} is not in 0..{len(self) - 1}")
        rows, found = np.array([row]), self._found()
        sample = {}
        for spec in self.schema.fields:
            place = found.placement.get(spec.name)
            if place is None:
                array = np.empty((1, *spec.shape), spec.dtype)
                self._decode(rows, {spec.name: array})
                sample[spec.name] = convert(array[0, ...])
            else:
                number, offset = (int(part[0]) for part in place.locate(rows))
                stored = self._stored(number, np.array([offset]), spec.sample_bytes)
                array = np.frombuffer(stored, spec.dtype, spec.elements, offset)
                sample[spec.name] = convert(array.reshape(spec.shape))
        return {spec.name: sample[spec.name] for spec in self.schema.fields}

    def close(self) -> None:
        """Drop the maps; they go when the last view of them does."""
        self._maps.close()
        self._find = _closed  # it may hold views of its own

    def _found(self) -> FieldLocations:
        with self._lock:
            if self._known is None:
                self._known = self._find(self.load_or_build)
            return self._known

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        self._read_rows(np.arange(start, stop), out)

    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        placement = self._found().placement
        for name in out.keys() & placement.keys():
            self._gather(placement[name], rows, out[name])
        self._decode(rows, {name: array for name, array in out.items() if name not in placement})

    def _gather(self, place: Placement, rows: Index, target: Array) -> None:
        """Copy one field of these rows into `target`, file by file."""
        flat = target.reshape(len(rows), -1).view(np.uint8)
        for number, at, offsets in _by_file(*place.locate(rows)):
            _copy(self._stored(number, offsets, flat.shape[1]), offsets, flat, at)

    def _decode(self, rows: Index, out: Mapping[str, Array]) -> None:
        """Decode the blocks of these rows, each once, and copy the rows out of them."""
        for blocks in self._found().blocks:
            targets = {name: out[name] for name in blocks.fields if name in out}
            if targets:
                _decode(blocks, rows, targets, self._stored_block, self.schema.samples)

    def _stored(self, number: int, offsets: Index, width: int) -> Array:
        stored = self._maps[number]
        if int(offsets.min()) < 0 or int(offsets.max()) + width > len(stored):
            raise corrupt(self._maps.files[number], f"{int(offsets.max()) + width} bytes", len(stored))
        return stored

    def _stored_block(self, number: int, offset: int, stored: int) -> memoryview:
        return self._stored(number, np.array([offset]), stored)[offset : offset + stored].data


def _by_file(file: Index, offset: Index) -> Iterator[tuple[int, Index, Index]]:
    """For each file that rows lie in: its number, which of the rows, and their offsets."""
    for number in np.unique(file).tolist():
        at = np.flatnonzero(file == number)
        yield number, at, offset[at]


def _copy(stored: Array, offsets: Index, flat: Array, at: Index) -> None:
    """Copy a row of `flat` from each offset, into the rows `at`."""
    width = flat.shape[1]
    if width > WINDOW_BYTES:
        for row, begin in zip(at.tolist(), offsets.tolist(), strict=True):
            flat[row] = stored[begin : begin + width]
        return
    slots = flat.view(f"V{width}")[:, 0]
    for some, piece in runs(stored, offsets, width):
        slots[at[some]] = piece.view(f"V{width}")[:, 0]


def _decode(
    blocks: Blocks,
    rows: Index,
    targets: Mapping[str, Array],
    stored: Callable[[int, int, int], memoryview],
    samples: int,
) -> None:
    which = np.searchsorted(blocks.first, rows, side="right") - 1
    for number in np.unique(which).tolist():
        first = int(blocks.first[number])
        stop = int(blocks.first[number + 1]) if number + 1 < len(blocks.first) else samples
        fresh = {n: np.empty((stop - first, *a.shape[1:]), a.dtype) for n, a in targets.items()}
        place = (int(part[number]) for part in (blocks.file, blocks.offset, blocks.stored))
        blocks.decode(number, stored(*place), fresh)
        at = np.flatnonzero(which == number)
        for name, array in targets.items():
            array[at] = fresh[name][rows[at] - first]
