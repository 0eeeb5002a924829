"""Readahead: a thread that brings rows into the page cache before they are needed, as whole pieces."""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from iobench.formats import Array, Index, Reader, Rows, Schema
from iobench.host.machine_info import is_remote
from iobench.host.memory import Bytes, touched_array
from iobench.stream.addresses import AddressSpace
from iobench.stream.mapped_files import descriptors, open_plain, read_into, request, request_bytes
from iobench.stream.worker_pool import Pending, WorkerPool

WINDOW_BYTES = 32 << 20  # rows requested together
LONG_BYTES = 32 << 10  # random reads of this size are about as fast as sequential ones
MAX_READ_RATIO = 2  # maximum of bytes read per byte needed
SMALL_BYTES = 64 << 20  # a dataset up to this size is requested as a whole


class ReadaheadWindow:
    """The rows of an epoch in the order in which they are needed, batch by batch.

    Attributes
    ----------
    fields : list of str
        Fields worth requesting in the epoch's order: a piece of the epoch lies in long ranges, because rows
        are large or come in blocks, or the field lies between such fields. The others are read faster in
        stored order, and so is every field if the epoch is not larger than one piece.
    is_small : bool
        Requesting the whole dataset in stored order ends the epoch sooner than requesting rows.
    """

    def __init__(self, addresses: AddressSpace, batches: Sequence[Index]) -> None:
        self._addresses, self._batches = addresses, batches
        self._rows = max(1, WINDOW_BYTES // sum(addresses.widths.values()))
        first, rows = next(self.pieces(0)), sum(map(len, batches))
        whole = addresses.samples * sum(addresses.widths.values())
        self.is_small = whole <= SMALL_BYTES and addresses.samples <= MAX_READ_RATIO * rows
        self.fields = self._long(first) if len(first) < rows and not self.is_small else []
        ends = accumulate(map(len, batches))
        self._ends = {int(b[-1]): end for b, end in zip(batches, ends, strict=True)} if self.fields else {}

    def begins(self, rows: Index) -> bool:
        """Return True if these rows are the epoch's first."""
        return bool(rows[0] == self._batches[0][0])

    def end_of(self, rows: Index) -> int | None:
        """Return the number of the epoch's rows up to the end of these; None if they are not in it."""
        return self._ends.get(int(rows[-1]))

    def pieces(self, start: int = 1) -> Iterator[Index]:
        """Yield the rows from batch number `start` on, in pieces of whole batches."""
        gathered: list[Index] = []
        room = self._rows
        for batch in self._batches[start:]:
            gathered.append(batch)
            room -= len(batch)
            if room <= 0:
                yield np.concatenate(gathered)
                gathered, room = [], self._rows
        if gathered:
            yield np.concatenate(gathered)

    def _long(self, rows: Index) -> list[str]:
        """Return the fields whose rows can be read in long ranges, and the fields that lie between them."""
        long = [name for name in self._addresses.widths if self._is_long(rows, name)]
        for name in self._addresses.widths.keys() - long if long else ():
            if len(self._addresses.pages(rows, [*long, name])[0]) <= len(
                self._addresses.pages(rows, long)[0]
            ):
                long.append(name)
        return long

    def _is_long(self, rows: Index, name: str) -> bool:
        low, high = self._addresses.pages(rows, [name])
        count, size = len(low), int((high - low).sum())
        return (
            size >= count * LONG_BYTES and size <= MAX_READ_RATIO * len(rows) * self._addresses.widths[name]
        )


# Reads of this size fill the page cache at the speed of the disk even if the kernel's own readahead is
# short, and with large folios, which are fast to copy from.
PIECE_BYTES = 8 << 20
REQUESTED_BYTES = 128 << 20  # maximum of rows requested and not taken yet
READERS = 2  # threads: a single one leaves the disk idle while it copies, and between files


class Readahead:
    """A thread that brings an epoch's rows into the page cache before they are needed.

    Batches in stored order are read in that order. In other orders, fields in long ranges are requested in
    the epoch's order (see `ReadaheadWindow`), REQUESTED_BYTES ahead of the rows taken. Before that, the other
    fields are read in stored order, which brings small rows up to 50 times sooner. All of a small dataset is
    requested in stored order.
    """

    def __init__(self, addresses: AddressSpace, batches: Sequence[Rows]) -> None:
        self._addresses = addresses
        first, last = batches[0], batches[-1]
        self._window: ReadaheadWindow | None = None
        if isinstance(first, slice) and isinstance(last, slice):
            self._rows = slice(first.start, last.stop)
        else:
            self._window = ReadaheadWindow(
                addresses, [rows for rows in batches if not isinstance(rows, slice)]
            )
            self._rows = slice(0, addresses.samples)
        requested = self._window.fields if self._window else []
        self._stored = [name for name in addresses.widths if name not in requested]
        self._reached, self._all_read = self._rows.start, not self._stored
        self._requested = self._taken = 0  # rows of the epoch
        self._error: Exception | None = None
        self._scratch: SimpleQueue[Bytes] = SimpleQueue()  # buffers whose content is discarded
        self._process = os.getpid()
        self._begun = threading.Event()
        if self._window is None or self._window.is_small:
            self.begin()
        self._stopping = self.finished = False
        self._changed = threading.Condition()
        first_file = Path(addresses.files[0])
        self._request_bytes, self._remote = request_bytes(first_file), is_remote(first_file)
        self._files = descriptors(addresses.files, open_plain)
        self._thread = threading.Thread(target=self._work, name="iobench-ahead", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Start the work; until then the first rows of a shuffled epoch have the disk to themselves."""
        self._begun.set()

    def wait_for(self, row: int) -> None:
        """Wait until the rows before this one were read; raises the thread's error."""
        if self._window is None:
            self._wait(lambda: self._reached >= row)

    def fetch(self, rows: Index, names: Sequence[str]) -> None:
        """Make sure that rows of a shuffled epoch are in the page cache or requested.

        The epoch's first rows are requested here, and so are rows that are not in the epoch.
        """
        window = self._window
        first = window is not None and not window.is_small and window.begins(rows)
        if not first:
            self.begin()
        if self._error is not None:
            raise self._error
        if self.finished:
            return
        if first:
            self._request(rows, names)
            if not self._stored:  # later requests queue behind this one
                self.begin()
            return
        if any(name in self._stored for name in names):
            self._wait(lambda: self._all_read)
        requested = [name for name in names if name not in self._stored]
        if self._window is None or not requested:
            return
        end = self._window.end_of(rows)
        if end is None:
            self._request(rows, requested)
            return
        with self._changed:
            self._taken = max(self._taken, end)
            self._changed.notify_all()
        self._wait(lambda: self._requested >= end)

    def stop(self) -> None:
        """End the thread and close its files."""
        if os.getpid() != self._process:  # a forked child has no such thread, but may have its lock
            return
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self.begin()
        self._thread.join()
        self._files.close()

    def _wait(self, reached: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: reached() or self.finished or self._stopping)
        if self._stopping:
            raise CancelledError
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        self._begun.wait()
        try:
            if self._window is not None and self._window.is_small:  # faster than to read into a buffer
                self._request_ranges(*self._addresses.ranges(self._rows.start, self._rows.stop, self._stored))
                self._end_stored()
            else:
                self._read_stored()
            if self._window is not None and self._window.fields:
                self._request_in_order(self._window)
        except CancelledError:
            pass
        except Exception as error:  # noqa: BLE001 - raised again in the thread that waits for rows
            self._error = error
        with self._changed:
            self.finished = True
            self._changed.notify_all()

    def _read_stored(self) -> None:
        """Read whole fields in stored order; the first piece has the disk to itself."""
        if not self._stored:
            return
        step = max(1, PIECE_BYTES // max(self._addresses.widths[name] for name in self._stored))
        pending = deque[tuple[int, Pending[None]]]()
        readers = WorkerPool(self._read, READERS, "iobench-ahead")
        for _ in range(READERS):
            self._scratch.put(touched_array(PIECE_BYTES))
        try:
            readers.start()
            for row in range(self._rows.start, self._rows.stop, step):
                if self._stopping:
                    return
                end = min(row + step, self._rows.stop)
                pending.append((end, readers.submit(slice(row, end))))
                if len(pending) > READERS or row == self._rows.start:
                    self._reach(*pending.popleft())
            while pending:
                self._reach(*pending.popleft())
        finally:
            readers.close()
        self._end_stored()

    def _end_stored(self) -> None:
        with self._changed:
            self._all_read = True
            self._changed.notify_all()

    def _reach(self, row: int, read: Pending[None]) -> None:
        read.result()
        with self._changed:
            self._reached = row
            self._changed.notify_all()

    def _read(self, rows: slice) -> None:
        scratch = self._scratch.get()
        try:
            result = self._addresses.ranges(rows.start, rows.stop, self._stored)
            for low, high in zip(*(ends.tolist() for ends in result), strict=True):
                number, offset = self._addresses.within(low)
                with self._files.use(number) as file:
                    if self._remote:
                        request(file, offset, offset + high - low, self._request_bytes)
                    for done in range(0, high - low, len(scratch)):
                        into = scratch[: high - low - done]
                        read_into(file, self._addresses.files[number], offset + done, into)
        finally:
            self._scratch.put(scratch)

    def _request_in_order(self, window: ReadaheadWindow) -> None:
        """Request the epoch's rows after the first batch, a bounded number ahead of the rows taken."""
        ahead = REQUESTED_BYTES // sum(self._addresses.widths.values())
        for rows in window.pieces():
            self._wait(lambda: self._requested - self._taken <= ahead)
            self._request(rows, window.fields)
            with self._changed:
                self._requested = window.end_of(rows) or self._requested
                self._changed.notify_all()

    def _request(self, rows: Index, names: Sequence[str]) -> None:
        self._request_ranges(*self._addresses.pages(rows, names))

    def _request_ranges(self, lows: Index, highs: Index) -> None:
        """Request these ranges from the kernel, all at once and without waiting."""
        for low, high in zip(lows.tolist(), highs.tolist(), strict=True):
            number, offset = self._addresses.within(low)
            with self._files.use(number) as file:
                request(file, offset, offset + high - low, self._request_bytes)


class ReadaheadReader(Reader):
    """A reader through the page cache, which a readahead thread fills if the files are `cold`.

    If `reads_slices`, slices of rows are read in long pieces, which the kernel's own readahead brings.
    """

    def __init__(self, schema: Schema, space: AddressSpace, cold: bool, reads_slices: bool = False) -> None:
        super().__init__(schema)
        self.cold = cold
        self._space, self._reads_slices = space, reads_slices
        self._ahead: Readahead | None = None

    def read_ahead(self, batches: Sequence[Rows]) -> None:
        """Start to bring these batches into the page cache, in the order in which they will be read."""
        self.stop()
        if self.cold and not (self._reads_slices and isinstance(batches[0], slice)):
            self._ahead = Readahead(self._space, batches)

    def wait_for(self, row: int) -> None:
        """Wait until the rows before this one were read ahead, if they are; raises the error of that."""
        if self._ahead is not None:
            self._ahead.wait_for(row)

    @abstractmethod
    def _copy_rows(self, rows: Index, out: Mapping[str, Array]) -> None:
        """Read rows that are in the page cache or requested."""

    def _read_rows(self, rows: Index, out: Mapping[str, Array]) -> None:
        if self._ahead is not None:
            self._ahead.fetch(rows, list(out))
        self._copy_rows(rows, out)
        if self._ahead is not None:
            self._ahead.begin()

    def stop(self) -> None:
        """Stop reading ahead; waiting threads get CancelledError."""
        if self._ahead is not None:
            self._ahead.stop()
            self._ahead = None
