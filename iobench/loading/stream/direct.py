"""Rows read past the page cache, for data that would not stay in it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.formats import Array, Convert, Extent, Reader, Schema, corrupt, raw_bytes, same
from iobench.host.aio import Queue, address_of, open_direct
from iobench.host.memory import PAGE, touched_array
from iobench.loading.stream.ahead import naming

PIECE_BYTES = 1 << 20  # the most that is asked for at a time where rows follow each other
SMALLEST_SLOT = 8 << 10
SMALL_BYTES = 32 << 20  # a field of no more is read once and kept: its rows share pages

Index = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class DirectReader(Reader):
    """Reads rows at their places in the files, each thread with a queue of its own.

    DirectUnavailable where a file system has no such reads; OSError, with the file's name, where the
    disk fails.
    """

    def __init__(self, schema: Schema, extents: Mapping[str, Extent]) -> None:
        super().__init__(schema)
        self._places = dict(extents)
        self._files: dict[str, int] = {}
        self._small: dict[str, Array] = {}
        self._queues: list[Queue] = []
        self._own = threading.local()
        try:
            for field in schema.fields:
                if field.sample_bytes * schema.samples <= SMALL_BYTES:
                    self._small[field.name] = self._whole(field.name)
                else:
                    self._files[field.name] = open_direct(extents[field.name].path)
        except BaseException:
            self.close()
            raise

    def sample(self, row: int, convert: Convert = same) -> dict[str, Any]:
        """One sample in fresh arrays."""
        return {name: convert(array[0]) for name, array in self.batch(slice(row, row + 1)).items()}

    def close(self) -> None:
        """Close the files and the queues."""
        while self._files:  # first: giving a queue back takes a while, in which Ctrl-C may come
            os.close(self._files.popitem()[1])
        self._small.clear()
        while self._queues:
            self._queues.pop().close()

    def phase(self, name: str, row: int) -> int:
        """Where in a page a row begins: memory that begins there needs no copy of a slice."""
        place = self._places[name]
        start = (place.offset + row * place.stride) % PAGE
        return 0 if name in self._small or start % self._specs[name][1].itemsize else start

    def _whole(self, name: str) -> Array:
        place, (shape, dtype) = self._places[name], self._specs[name]
        array = np.empty((self.schema.samples, *shape), dtype)
        with open(place.path, "rb", buffering=0) as file, naming(place.path):
            file.seek(place.offset)
            found = file.readinto(raw_bytes(array))
        if found != array.nbytes:
            raise corrupt(place.path, f"{place.offset + array.nbytes} bytes", place.offset + (found or 0))
        return array

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        for name, target in out.items():
            if name in self._small:
                target[:] = self._small[name][start:stop]
            else:
                self._copy(name, start, raw_bytes(target))

    def _read_rows(self, rows: Index, out: Mapping[str, Array]) -> None:
        order = _argsort(rows)
        for name, target in out.items():
            if name in self._small:
                np.take(self._small[name], rows, axis=0, out=target, mode="clip")
            elif self._places[name].stride >= PIECE_BYTES:
                for slot, row in enumerate(rows.tolist()):
                    self._copy(name, row, raw_bytes(target[slot]))
            else:
                self._gather(name, rows[order], order, target)

    def _copy(self, name: str, row: int, target: memoryview) -> None:
        """Bytes from the beginning of a row on, as many as `target` holds."""
        into = np.frombuffer(target, np.uint8)
        start = self._places[name].offset + row * self._places[name].stride
        if len(into) >= 2 * PAGE and (address_of(into) - start) % PAGE == 0:
            self._read_into(name, start, into)
        else:
            self._copy_pages(name, start, into)

    def _read_into(self, name: str, start: int, into: Bytes) -> None:
        """Bytes from this offset on, whole pages straight into memory that lies as the file does."""
        end = start + len(into)
        low, high = -(-start // PAGE) * PAGE, end // PAGE * PAGE
        edges = touched_array(2 * PAGE)
        reads = [
            (at, into[at - start : min(at + PIECE_BYTES, high) - start])
            for at in range(low, high, PIECE_BYTES)
        ]
        reads += [(low - PAGE, edges[:PAGE])] * (start < low) + [(high, edges[PAGE:])] * (high < end)
        offsets, lengths = np.array([at for at, _ in reads]), np.array([len(place) for _, place in reads])
        places = [place for _, place in reads]
        for number, got in self._reads(name, offsets, lengths, places):
            at = int(offsets[number])
            self._check(name, min(at + int(lengths[number]), end), at + len(got))
        into[: low - start] = edges[PAGE - (low - start) : PAGE]
        into[high - start :] = edges[PAGE : PAGE + end - high]

    def _copy_pages(self, name: str, start: int, into: Bytes) -> None:
        """Bytes from this offset on, by way of memory that is aligned."""
        end = start + len(into)
        offsets = np.arange(start // PAGE * PAGE, end, PIECE_BYTES)
        lengths = np.minimum(PIECE_BYTES, -(-end // PAGE) * PAGE - offsets)
        for number, got in self._reads(name, offsets, lengths):
            low = int(offsets[number]) - start
            high = min(low + PIECE_BYTES, len(into))
            self._check(name, start + high, int(offsets[number]) + len(got))
            into[max(low, 0) : high] = got[max(-low, 0) : high - low]

    def _gather(self, name: str, rows: Index, slots: Index, target: Array) -> None:
        """Rows in increasing order, each into its slot: neighbours are read together."""
        place = self._places[name]
        starts = place.offset + rows * place.stride
        low, high = starts // PAGE * PAGE, -(-(starts + place.stride) // PAGE) * PAGE
        first = _pieces(low, high)
        after = np.append(first[1:], len(rows))
        offsets, ends = low[first], starts[after - 1] + place.stride
        lengths = high[after - 1] - offsets
        whole = np.dtype((np.void, place.stride))  # a row as one thing: three times as fast to move
        into = np.frombuffer(raw_bytes(target), whole)
        follow = np.diff(rows) == 1
        for number, got in self._reads(name, offsets, lengths):
            offset, a, b = int(offsets[number]), int(first[number]), int(after[number])
            self._check(name, int(ends[number]), offset + len(got))
            if follow[a : b - 1].all():
                into[slots[a:b]] = np.frombuffer(got, whole, b - a, int(starts[a]) - offset)
            else:
                for i in range(a, b):
                    into[slots[i]] = np.frombuffer(got, whole, 1, int(starts[i]) - offset)[0]

    def _reads(
        self, name: str, offsets: Index, lengths: Index, into: Sequence[Bytes] | None = None
    ) -> Iterator[tuple[int, Bytes]]:
        if name not in self._files:
            raise ValueError("this reader is closed")
        with naming(self._places[name].path):
            yield from self._queue(int(lengths.max())).read(self._files[name], offsets, lengths, into)

    def _queue(self, most: int) -> Queue:
        """This thread's queue for reads of at most so many bytes."""
        size = SMALLEST_SLOT
        while size < most:
            size *= 2
        size = size * 3 // 4 if size * 3 // 4 >= most else size
        if not hasattr(self._own, "queues"):
            self._own.queues = {}
        if size not in self._own.queues:
            self._own.queues[size] = Queue(size)
            self._queues.append(self._own.queues[size])
        queue: Queue = self._own.queues[size]
        return queue

    def _check(self, name: str, expected: int, found: int) -> None:
        if found < expected:
            raise corrupt(self._places[name].path, f"at least {expected} bytes", f"{found} bytes")


def _pieces(low: Index, high: Index) -> Index:
    """Where in sorted page ranges a new read begins: at gaps, and before a read grows too large."""
    gaps = np.flatnonzero(np.concatenate(([True], low[1:] > high[:-1])))
    since = low - np.repeat(low[gaps], np.diff(np.append(gaps, len(low))))
    cuts = np.flatnonzero(np.diff(np.maximum(since - PAGE, 0) // PIECE_BYTES, prepend=0))
    return np.union1d(gaps, cuts)


def _argsort(rows: Index) -> Index:
    """What sorts rows, stably: by digits of 16 bits, which NumPy sorts five times as fast as int64."""
    order = np.arange(len(rows))
    for shift in range(0, max(1, int(rows.max()).bit_length()), 16):
        digit = (rows >> shift & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digit[order], kind="stable")]
    return order
