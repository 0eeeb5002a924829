"""Reading rows into the page cache ahead of who takes them, by a thread of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.formats import Convert, Reader, Schema, corrupt, same
from iobench.host.memory import PAGE, touched_array
from iobench.loading.stream.files import Files, open_plain
from iobench.loading.stream.places import Laid, merged

# Reads of this size fill the cache at the speed of the disk even where the kernel's own
# read-ahead is short, and with large folios, which are fast to copy from afterwards.
PIECE_BYTES = 8 << 20
LARGE_ROW_BYTES = 32 << 10  # reads of this size at random are about as fast as in order

Index = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class ReadAhead:
    """A thread that reads rows into the page cache, in the order in which they are stored."""

    def __init__(self, places: Laid, rows: slice, first: int | None) -> None:
        self._places, self._rows, self._first = places, rows, first
        self._step = max(1, PIECE_BYTES // max(places.widths.values()))
        self._reached = rows.start
        self._error: Exception | None = None
        self._process = os.getpid()
        self._begun = threading.Event()
        if first is None:
            self.begin()
        self._stopping = self.finished = False
        self._changed = threading.Condition()
        self._files = Files(places.files, open_plain)
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
        large = [name for name in names if self._places.widths[name] >= LARGE_ROW_BYTES]
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
        low, high = self._places.stretches(name, rows)
        low, high = low // PAGE * PAGE, -(-high // PAGE) * PAGE
        for begin, end in zip(*(ends.tolist() for ends in merged(low, high)), strict=True):
            number, offset = self._places.within(begin)
            with self._files.using(number) as file:
                os.posix_fadvise(file, offset, end - begin, os.POSIX_FADV_WILLNEED)

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
        self._files.close()

    def _work(self) -> None:
        self._begun.wait()
        try:
            scratch = touched_array(PIECE_BYTES)
            for row in range(self._rows.start, self._rows.stop, self._step):
                if self._stopping:
                    break
                self._read(row, min(row + self._step, self._rows.stop), scratch)
                with self._changed:
                    self._reached = row + self._step
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - whoever waits for rows is told
            self._error = error
        with self._changed:
            self.finished = True
            self._changed.notify_all()

    def _read(self, start: int, stop: int, scratch: Bytes) -> None:
        for low, high in zip(*(ends.tolist() for ends in self._places.ranges(start, stop)), strict=True):
            number, offset = self._places.within(low)
            with self._files.using(number) as file:
                for done in range(0, high - low, len(scratch)):
                    into = scratch[: high - low - done]
                    read_into(file, self._places.files[number], offset + done, into)


def read_into(descriptor: int, path: Path, start: int, into: Bytes) -> None:
    """Fill memory from this offset of a file on.

    CorruptArtifact where the file ends before, OSError with its name where the disk fails.
    """
    done = 0
    while done < len(into):
        with naming(path):
            got = os.preadv(descriptor, [into[done : done + PIECE_BYTES].data], start + done)
        if got == 0:
            raise corrupt(path, f"at least {start + len(into)} bytes", f"{start + done} bytes")
        done += got


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have the disk's errors name a file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


class AheadReader(Reader):
    """A reader through the page cache, which a thread of its own fills ahead of it where it is `cold`."""

    def __init__(self, schema: Schema, laid: Laid, cold: bool) -> None:
        super().__init__(schema)
        self.cold = cold
        self._laid = laid
        self._ahead: ReadAhead | None = None

    def sample(self, row: int, convert: Convert = same) -> dict[str, Any]:
        """One sample in fresh arrays."""
        return {name: convert(array[0]) for name, array in self.batch(slice(row, row + 1)).items()}

    def read_ahead(self, rows: slice, first: int | None = None) -> None:
        """Begin to read these rows into the cache.

        They will be asked for as they are stored; or else in another order, which begins with row `first`.
        """
        self.stop()
        if self.cold:
            self._ahead = ReadAhead(self._laid, rows, first)

    def stop(self) -> None:
        """End reading ahead; whoever waits for it gets CancelledError."""
        if self._ahead is not None:
            self._ahead.stop()
            self._ahead = None
