"""Rows read through the page cache, which is filled ahead of them where it is not full."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.formats import Array, Convert, Extent, Field, Reader, Schema, corrupt, raw_bytes, same
from iobench.host.bus_errors import CAUGHT, GuardedMap
from iobench.host.memory import PAGE, touched_array

# Reads of this size fill the cache at the speed of the disk even where the kernel's own
# read-ahead is short, and with large folios, which are fast to copy from afterwards.
PIECE_BYTES = 8 << 20
LARGE_ROW_BYTES = 32 << 10  # reads of this size at random are about as fast as in order

Index = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class CachedReader(Reader):
    """Copies rows out of maps; of cold files, `read_ahead` brings them into the cache before.

    CorruptArtifact where a file ends too soon, OSError where the disk fails. A page of a map that
    cannot be read, or is cut off while it is read, is an OSError too (see `host.bus_errors`): not so
    where somebody else catches bus errors once this is open. Machines on which they cannot be caught
    have rows read one by one instead.
    """

    def __init__(self, schema: Schema, extents: Mapping[str, Extent], cold: bool) -> None:
        super().__init__(schema)
        self._extents, self.cold = dict(extents), cold
        self._ahead: _Ahead | None = None
        self._files: dict[Path, int] = {}
        self._maps = {extent.path: GuardedMap(extent.path) for extent in extents.values()}
        self._arrays = {
            f.name: _array(f, self._maps[extents[f.name].path], schema.samples, extents[f.name].offset)
            for f in schema.fields
        }
        for path, mapped in self._maps.items():
            self._files[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if cold:  # `read_ahead` reads ahead, and a fault must not start a stream of its own beside it
                mapped.madvise(mmap.MADV_RANDOM)
                os.posix_fadvise(self._files[path], 0, 0, os.POSIX_FADV_RANDOM)

    @property
    def extents(self) -> dict[str, Extent]:
        """Each field's place in its own file."""
        return self._extents

    def sample(self, row: int, convert: Convert = same) -> dict[str, Any]:
        """One sample in fresh arrays."""
        return {name: convert(array[0]) for name, array in self.batch(slice(row, row + 1)).items()}

    def read_ahead(self, rows: slice, first: int | None = None) -> None:
        """Begin to read these rows into the cache.

        They will be asked for as they are stored; or else in another order, which begins with row `first`.
        """
        self.stop()
        if self.cold:
            self._ahead = _Ahead(self.schema, self._extents, rows, first)

    def stop(self) -> None:
        """End reading ahead; whoever waits for it gets CancelledError."""
        if self._ahead is not None:
            self._ahead.stop()
            self._ahead = None

    def close(self) -> None:
        """End reading ahead and drop the maps."""
        self.stop()
        while self._files:
            os.close(self._files.popitem()[1])
        self._arrays.clear()
        self._maps.clear()

    def _file(self, path: Path) -> int:
        if path not in self._files:
            raise ValueError("this reader is closed")
        return self._files[path]

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        """By plain reads, which are as fast as copies out of the map."""
        if self._ahead is not None:
            self._ahead.wait_for(stop)
        for name, target in out.items():
            self._read_from(name, start, target)

    def _read_rows(self, rows: Index, out: Mapping[str, Array]) -> None:
        if self._ahead is not None:
            self._ahead.fetch(rows, list(out))
        for name, target in out.items():
            if CAUGHT:
                self._gather(name, rows, target)
            else:
                for slot, row in enumerate(rows.tolist()):
                    self._read_from(name, row, target[slot : slot + 1])
        if self._ahead is not None:
            self._ahead.begin()

    def _gather(self, name: str, rows: Index, target: Array) -> None:
        path = self._extents[name].path
        self._file(path)
        # "clip" never clips here, the rows were checked; with "raise", take copies twice
        np.take(self._arrays[name], rows, axis=0, out=target, mode="clip")
        self._maps[path].guard.check()

    def _read_from(self, name: str, row: int, target: Array) -> None:
        """Fill an array with what lies from a row on."""
        place, into = self._extents[name], np.frombuffer(raw_bytes(target), np.uint8)
        _read_into(self._file(place.path), place, place.offset + row * place.stride, into)


class _Ahead:
    """A thread that reads rows into the page cache, in the order in which they are stored."""

    def __init__(self, schema: Schema, extents: Mapping[str, Extent], rows: slice, first: int | None) -> None:
        self._places, self._rows, self._first = extents, rows, first
        self._step = max(1, PIECE_BYTES // max(e.stride for e in extents.values()))
        self._reached = rows.start
        self._error: Exception | None = None
        self._process = os.getpid()
        self._begun = threading.Event()
        if first is None:
            self.begin()
        self._stopping = self.finished = False
        self._changed = threading.Condition()
        with ExitStack() as stack:
            self._files = {}
            for path in {e.path for e in extents.values()}:
                self._files[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, self._files[path])
            self._closing = stack.pop_all()
        self._thread = threading.Thread(target=self._work, name="iobench-ahead", daemon=True)
        self._thread.start()

    def wait_for(self, row: int) -> None:
        """Wait until the rows before this one were read; an error of the thread is raised."""
        if self._first is None:
            self._wait(lambda: self._reached >= row or self.finished)

    def begin(self) -> None:
        """Let the thread read: until then, the first rows out of order have the disk to themselves."""
        self._begun.set()

    def fetch(self, rows: Index, names: Sequence[str]) -> None:
        """See to it that rows out of order are in the cache, or on their way.

        Large rows are asked for one by one, beside the thread, and so is the first batch. Small
        ones are waited for: reading on in order brings them sooner, by up to 50 times.
        """
        large = [name for name in names if self._places[name].stride >= LARGE_ROW_BYTES]
        first = int(rows[0]) == self._first
        if not first:
            self.begin()
        if self._error is not None:
            raise self._error
        if self.finished:
            return
        for name in names if first else large:
            self._ask_for(name, rows)
        if not first and len(large) < len(names):
            self._wait(lambda: self.finished)

    def _ask_for(self, name: str, rows: Index) -> None:
        """Have the kernel fetch the pages of these rows, all at once and without waiting."""
        place = self._places[name]
        starts = np.sort(place.offset + rows * place.stride)
        low, high = starts // PAGE * PAGE, -(-(starts + place.stride) // PAGE) * PAGE
        first = np.flatnonzero(np.concatenate(([True], low[1:] > high[:-1])))
        last = np.append(first[1:], len(rows)) - 1
        file = self._files[place.path]
        for offset, end in zip(low[first].tolist(), high[last].tolist(), strict=True):
            os.posix_fadvise(file, offset, end - offset, os.POSIX_FADV_WILLNEED)

    def _wait(self, reached: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: reached() or self._stopping)
        if self._stopping:
            raise CancelledError
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End the thread and close its files."""
        if os.getpid() != self._process:  # a child has no such thread, but maybe its lock
            return
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self.begin()
        self._thread.join()
        self._closing.close()

    def _work(self) -> None:
        self._begun.wait()
        try:
            scratch = touched_array(PIECE_BYTES)
            for row in range(self._rows.start, self._rows.stop, self._step):
                if self._stopping:
                    break
                for place in self._places.values():
                    self._read(place, row, min(row + self._step, self._rows.stop), scratch)
                with self._changed:
                    self._reached = row + self._step
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - whoever waits for rows is told
            self._error = error
        with self._changed:
            self.finished = True
            self._changed.notify_all()

    def _read(self, place: Extent, start: int, stop: int, scratch: Bytes) -> None:
        first, count = place.offset + start * place.stride, (stop - start) * place.stride
        for low in range(0, count, len(scratch)):
            _read_into(self._files[place.path], place, first + low, scratch[: count - low])


def _read_into(descriptor: int, place: Extent, start: int, into: Bytes) -> None:
    """Fill memory from this offset of a file on.

    CorruptArtifact where the file ends before, OSError with its name where the disk fails.
    """
    done = 0
    while done < len(into):
        try:
            got = os.preadv(descriptor, [into[done : done + PIECE_BYTES].data], start + done)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(place.path)) from None
        if got == 0:
            raise corrupt(place.path, f"at least {start + len(into)} bytes", f"{start + done} bytes")
        done += got


def _array(field: Field, mapped: GuardedMap, samples: int, offset: int) -> Array:
    """The samples of a field as they lie in a map."""
    flat = np.frombuffer(mapped, field.dtype, samples * field.elements, offset)
    return flat.reshape(samples, *field.shape)
