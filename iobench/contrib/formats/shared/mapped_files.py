"""Files as mapped bytes, and copies of many rows out of them."""

from __future__ import annotations

import mmap
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from iobench.base.errors import corrupt
from iobench.formats import Array, Index

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
