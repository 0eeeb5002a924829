"""Decoded blocks, kept as long as there is room, each decoded by one thread while others wait for it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import torch

from iobench.formats import Batch
from iobench.loading.stream.gather import LARGE_ROW_BYTES

CACHE_BYTES = 256 << 20  # several windows of block order

Key = tuple[int, int]  # of a table and a block


class Room:
    """Arrays for the rows of a block, and a view of each large row: to make these takes a while."""

    def __init__(self, arrays: Batch) -> None:
        self.arrays = arrays
        self.views = {
            name: torch.from_numpy(array.reshape(len(array), -1).view(np.uint8)).unbind()
            for name, array in arrays.items()
            if array.nbytes >= LARGE_ROW_BYTES * len(array)
        }


class Decoding:
    """A block of so many rows and bytes that some thread decodes, or has decoded."""

    def __init__(self, key: Key, rows: int, size: int) -> None:
        self.key, self.rows, self.size = key, rows, size
        self.left, self.users, self.kept = rows, 0, True
        self._done = threading.Event()
        self._found: Room | BaseException | None = None

    def result(self) -> Room:
        """What was decoded, as soon as it is there; the error that came instead is raised."""
        self._done.wait()
        if isinstance(self._found, BaseException):
            raise self._found
        assert self._found is not None
        return self._found

    def run(self, decode: Callable[[], Room]) -> None:
        """Decode now."""
        try:
            self._found = decode()
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            self._found = error
        self._done.set()

    @property
    def failed(self) -> bool:
        """Whether an error came of it."""
        return isinstance(self._found, BaseException)

    @property
    def room(self) -> Room | None:
        """What it was decoded into."""
        return None if isinstance(self._found, BaseException) else self._found


class DecodedBlocks:
    """The blocks that were used last, `CACHE_BYTES` of them at most, and the memory of those before them.

    A block whose rows were all taken is not wanted again in an epoch. Its memory is used again once
    nobody looks at it: fresh memory, which the kernel fills with zeros, takes longer than some codecs.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, Decoding] = OrderedDict()
        self._spare: dict[Key, list[Room]] = {}  # by table and rows
        self._bytes = 0
        self._lock = threading.Lock()

    def take(self, key: Key, rows: int, size: int) -> tuple[Decoding, bool]:
        """A block, and whether whoever asks has to `run` it; to be given back by `done`."""
        with self._lock:
            found = self._kept.get(key)
            mine = found is None or found.failed
            if found is not None and found.failed:
                self._drop(found)
            if found is None or mine:
                found = self._kept[key] = Decoding(key, rows, size)
                self._bytes += size
            self._kept.move_to_end(key)
            found.users += 1
            while self._bytes > CACHE_BYTES and len(self._kept) > 1:
                self._drop(next(iter(self._kept.values())))
            return found, mine

    def done(self, decoding: Decoding, rows: int) -> None:
        """So many rows were taken out of a block, by one of those who asked for it."""
        with self._lock:
            decoding.users -= 1
            decoding.left -= rows
            if decoding.kept and decoding.left <= 0:
                self._drop(decoding)
            elif not decoding.kept:
                self._reuse(decoding)

    def room(self, table: int, rows: int) -> Room | None:
        """Room for a block of so many rows, where there is some that nobody uses any more."""
        with self._lock:
            spare = self._spare.get((table, rows))
            return spare.pop() if spare else None

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            for decoding in self._kept.values():
                decoding.kept = False  # somebody may be at it
            self._kept.clear()
            self._spare.clear()
            self._bytes = 0

    def _drop(self, decoding: Decoding) -> None:
        del self._kept[decoding.key]
        self._bytes -= decoding.size
        decoding.kept = False
        self._reuse(decoding)

    def _reuse(self, decoding: Decoding) -> None:
        if not decoding.users and (room := decoding.room) is not None:
            self._spare.setdefault((decoding.key[0], decoding.rows), []).append(room)
