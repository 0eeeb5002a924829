"""Reader of rows by their locations in files, shared by formats that store samples as records."""

from __future__ import annotations

import mmap
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.base.errors import corrupt
from iobench.formats import (
    Array,
    Batch,
    Blocks,
    Convert,
    Field,
    Index,
    ListedSpans,
    LoadOrBuild,
    Placement,
    Ragged,
    Reader,
    Rows,
    Schema,
    identity,
)

MAPPED = 128  # files that one reader maps at once: each takes a descriptor
PIECE_BYTES = 256 << 10  # of rows that are gathered together, so that they fit in the L2 cache
WINDOW_BYTES = 16 << 10  # larger rows are copied faster one by one


class Maps:
    """Files as read-only byte arrays: the first 128 are mapped at once, the others on first access."""

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
            mapped = self._mapped.get(number)
            if mapped is None:
                if len(self._mapped) >= MAPPED:
                    self._mapped.popitem(last=False)
                mapped = self._mapped[number] = map_bytes(self.files[number])
            return mapped

    def close(self) -> None:
        """Drop the maps; they are released with the last view of them."""
        with self._lock:
            self._mapped = None


def map_bytes(path: Path) -> Array:
    """Map a file as a read-only uint8 array; CorruptArtifact if it is not a regular file, or empty."""
    if not path.is_file():  # opening a pipe would block
        raise corrupt(path, "a file", "something else" if path.exists() else "no such file")
    try:
        with open(path, "rb") as opened:
            return np.frombuffer(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except ValueError as error:
        raise corrupt(path, "a file with content", error) from error


def windows(stored: Array, width: int) -> Array:
    """Return a view with one item per offset: the `width` bytes of a flat uint8 array that begin there."""
    view: Array = np.ndarray((max(0, len(stored) - width + 1),), f"V{width}", stored.data, strides=(1,))
    return view


def runs(stored: Array, offsets: Index, width: int) -> Iterator[tuple[slice, Array]]:
    """Yield the `width` bytes at each offset as uint8 (n, width), in pieces, with the slice of offsets."""
    step = max(1, PIECE_BYTES // width)
    view = windows(stored, width)
    for low in range(0, len(offsets), step):
        some = slice(low, min(low + step, len(offsets)))
        yield some, view[offsets[some]].view(np.uint8).reshape(-1, width)


@dataclass(frozen=True)
class EncodedSpans:
    """Encoded samples of a ragged field; `decode` returns the elements of a sample from its stored bytes."""

    places: ListedSpans
    decode: Callable[[int, memoryview], Array]


@dataclass(frozen=True)
class FieldLocations:
    """Locations of a reader's fields.

    They are stored as in memory (`placement`; ragged fields as `ListedSpans`), or encoded (`blocks`; ragged
    fields in `spans`).
    """

    placement: Mapping[str, Placement] = field(default_factory=dict)
    blocks: Sequence[Blocks] = ()
    spans: Mapping[str, EncodedSpans] = field(default_factory=dict)


def _closed(load_or_build: LoadOrBuild) -> FieldLocations:
    raise ValueError("this reader is closed")


class PlacedReader(Reader):
    """Copies or decodes rows out of mapped files.

    `locate` returns the fields' locations in them; it is called once, when rows are first requested. What
    takes long in it should go through the `LoadOrBuild` that it receives.
    """

    def __init__(self, schema: Schema, maps: Maps, locate: Callable[[LoadOrBuild], FieldLocations]) -> None:
        super().__init__(schema)
        self._maps = maps
        self._locate = locate
        self._lock = threading.Lock()
        self._known: FieldLocations | None = None

    def placement(self) -> Mapping[str, Placement]:
        """Return the locations of the fields that are stored as in memory."""
        return self._locations().placement

    def blocks(self) -> Sequence[Blocks]:
        """Return the locations of the fields that are stored encoded."""
        return self._locations().blocks

    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """Return one sample: views of the files where it is stored as in memory, else new arrays."""
        self._check_row(row)
        rows, locations = np.array([row]), self._locations()
        sample = {}
        for spec in self.schema.fields:
            place = locations.placement.get(spec.name)
            if spec.is_ragged:
                sample[spec.name] = convert(self._elements(spec, row))
            elif place is None:
                array = np.empty((1, *spec.shape), spec.dtype)
                self._decode(rows, {spec.name: array})
                sample[spec.name] = convert(array[0, ...])
            else:
                number, offset = (int(part[0]) for part in place.locate(rows))
                stored = self._stored(number, np.array([offset]), spec.sample_bytes)
                array = np.frombuffer(stored, spec.dtype, spec.elements, offset)
                sample[spec.name] = convert(array.reshape(spec.shape))
        return {spec.name: sample[spec.name] for spec in self.schema.fields}

    def batch(self, rows: Rows | Sequence[int]) -> Batch:
        """Return the rows in new arrays, ragged fields as `Ragged`; IndexError outside 0..len-1."""
        batch: dict[str, Any] = super().batch(rows)
        if not self.schema.ragged:
            return batch
        checked, _ = self._checked(rows)
        index = np.arange(checked.start, checked.stop) if isinstance(checked, slice) else checked
        for spec in self.schema.ragged:
            samples = [self._elements(spec, row) for row in index.tolist()]
            batch[spec.name] = Ragged.of(samples, spec.inner, spec.dtype)
        return {spec.name: batch[spec.name] for spec in self.schema.fields}

    def stored_block(self, blocks: Blocks, number: int) -> memoryview:
        """Return the stored bytes of a block; CorruptArtifact if its file is shorter."""
        file, offset, stored = (int(part[number]) for part in (blocks.file, blocks.offset, blocks.stored))
        return self._stored(file, np.array([offset]), stored)[offset : offset + stored].data

    def close(self) -> None:
        """Drop the maps; they are released with the last view of them."""
        self._maps.close()
        self._locate = _closed  # may hold views of its own

    def _locations(self) -> FieldLocations:
        with self._lock:
            if self._known is None:
                self._known = self._locate(self.load_or_build)
            return self._known

    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        placement = self._locations().placement
        for name in out.keys() & placement.keys():
            self._gather(placement[name], rows, out[name])
        self._decode(rows, {name: array for name, array in out.items() if name not in placement})

    def _gather(self, place: Placement, rows: Index, target: Array) -> None:
        """Copy one field of these rows into `target`, file by file."""
        flat = target.reshape(len(rows), -1).view(np.uint8)
        for number, at, offsets in _by_file(*place.locate(rows)):
            copy_rows(self._stored(number, offsets, flat.shape[1]), offsets, flat, at)

    def _elements(self, spec: Field, row: int) -> Array:
        """Return the elements of a sample of a ragged field, a view of its file unless they are encoded."""
        locations = self._locations()
        encoded, place = locations.spans.get(spec.name), locations.placement.get(spec.name)
        stored = self._span(encoded.places if encoded else place, row)
        elements = encoded.decode(row, stored.data) if encoded else stored.view(spec.dtype)
        return elements.reshape(-1, *spec.inner)

    def _span(self, place: Placement | None, row: int) -> Array:
        assert isinstance(place, ListedSpans)
        number, offset, size = int(place.file[row]), int(place.offset[row]), int(place.size[row])
        stored = self._maps[number]
        if size < 0 or offset < 0 or offset + size > len(stored):
            raise corrupt(self._maps.files[number], f"{offset + size} bytes", len(stored))
        return stored[offset : offset + size]

    def _decode(self, rows: Index, out: Mapping[str, Array]) -> None:
        """Decode the blocks of these rows, each once, and copy the rows out of them."""
        for blocks in self._locations().blocks:
            targets = {name: out[name] for name in blocks.fields if name in out}
            if targets:
                _decode(blocks, rows, targets, self.stored_block, self.schema.samples)

    def _stored(self, number: int, offsets: Index, width: int) -> Array:
        stored = self._maps[number]
        if int(offsets.min()) < 0 or int(offsets.max()) + width > len(stored):
            raise corrupt(self._maps.files[number], f"{int(offsets.max()) + width} bytes", len(stored))
        return stored


def _by_file(file: Index, offset: Index) -> Iterator[tuple[int, Index, Index]]:
    """Yield each file with rows in it: its number, which rows, and their offsets."""
    for number in np.unique(file).tolist():
        at = np.flatnonzero(file == number)
        yield number, at, offset[at]


def copy_rows(stored: Array, offsets: Index, flat: Array, at: Index) -> None:
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
    stored: Callable[[Blocks, int], memoryview],
    samples: int,
) -> None:
    which = np.searchsorted(blocks.first, rows, side="right") - 1
    for number in np.unique(which).tolist():
        first = int(blocks.first[number])
        stop = int(blocks.first[number + 1]) if number + 1 < len(blocks.first) else samples
        fresh = {n: np.empty((stop - first, *a.shape[1:]), a.dtype) for n, a in targets.items()}
        blocks.decode(number, stored(blocks, number), fresh)
        at = np.flatnonzero(which == number)
        for name, array in targets.items():
            array[at] = fresh[name][rows[at] - first]
