"""Read rows through the page cache, which a readahead thread fills if the files are cold.

The offsets of an epoch's rows are computed ahead of the threads that gather them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from iobench.formats import Array, Placement, Rows, Schema, raw_bytes
from iobench.host.bus_errors import SIGBUS_HANDLED
from iobench.host.maps import GuardedMap
from iobench.stream.addresses import MAX_LISTED, Index, Locate, RowAddresses
from iobench.stream.files import DescriptorPool, open_plain, read_into
from iobench.stream.gather import Gather, gather_for
from iobench.stream.readahead import ReadaheadReader
from iobench.stream.views import base_from, offset_in

PIECE_ROWS = 1 << 16  # located by one call: 0.5 ms
LEAST_ROWS = 1 << 14  # fewer are located sooner than a thread starts


class OffsetPrefetch:
    """Applies each of `locates` to an epoch's rows in a thread of its own, in the order of the epoch.

    A thread waits for the GIL after each NumPy call, and locating a group's rows takes up to four calls. The
    offsets of rows that the thread has not reached, or that are not in the epoch, are unknown.
    """

    def __init__(self, locates: Mapping[str, Locate], batches: Sequence[Rows]) -> None:
        first = batches[0] if batches and locates else slice(0)
        # the following batches are views of the same array, as far as they are drawn
        rest = None if isinstance(first, slice) else base_from(first)
        worth_it = rest is not None and LEAST_ROWS <= len(rest) <= MAX_LISTED
        self._rows = rest if rest is not None and worth_it else np.empty(0, np.int64)
        self._locates = dict(locates)
        self._offsets = {name: np.empty(len(self._rows), np.int64) for name in locates}
        self._reached, self._stopping = 0, False
        self._thread = threading.Thread(target=self._work, name="iobench-offsets", daemon=True)
        if len(self._rows):
            self._thread.start()

    def of(self, name: str, rows: Index) -> Index | None:
        """Return the offsets of these rows of a field, or None if they are unknown."""
        begin = offset_in(self._rows, rows) if name in self._offsets else None
        if begin is None or begin + len(rows) > self._reached:
            return None
        return self._offsets[name][begin : begin + len(rows)]

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        with suppress(Exception):  # the thread that gathers these rows raises it as well
            for low in range(0, len(self._rows), PIECE_ROWS):
                if self._stopping:
                    return
                piece = self._rows[low : low + PIECE_ROWS]
                for name, locate in self._locates.items():
                    self._offsets[name][low : low + len(piece)] = locate(piece)
                self._reached = low + len(piece)


READ_BYTES = 64 << 10  # adjacent rows of at least this size are read, others gathered from the map


class CachedReader(ReadaheadReader):
    """Copies rows from maps; `read_ahead` brings those of cold files into the page cache before.

    Raises CorruptArtifact if a file ends too early, OSError if the disk fails. An unreadable or truncated
    page of a map is an OSError as well (see `host.bus_errors`), unless other code installs a handler of bus
    errors while the reader is open. On machines where bus errors cannot be handled, rows are read one by one
    instead of mapped.
    """

    def __init__(self, schema: Schema, placements: Mapping[str, Placement], cold: bool) -> None:
        self._addresses = RowAddresses(schema, placements)
        super().__init__(schema, self._addresses, cold)
        mapped = GuardedMap(self._addresses.files, self._addresses.sizes)
        self._guard = mapped.guard  # kept by an error's traceback, which must not keep the map
        self._gathers: dict[str, Gather] = {
            f.name: gather_for(self._addresses, f.name, mapped.bytes) for f in schema.fields
        }
        if cold:  # `read_ahead` reads ahead: page faults must not start a readahead of their own
            mapped.advise_random()
        # the reads of slices have the kernel's own readahead, and need no thread for it
        self._reads_slices = all(
            self._addresses.start_if_contiguous(f.name) is not None for f in schema.fields
        )
        self._files = DescriptorPool(self._addresses.files, partial(_opened, cold and not self._reads_slices))
        self._offsets = OffsetPrefetch({}, [])

    def read_ahead(self, batches: Sequence[Rows]) -> None:
        """Start to locate the rows of these batches, and to fill the page cache if the files are cold.

        Slices of whole arrays are left to the kernel's readahead.
        """
        if self._reads_slices and isinstance(batches[0], slice):
            self.stop()
            return
        super().read_ahead(batches)
        locates = {name: gather.locate for name, gather in self._gathers.items() if gather.locate}
        self._offsets = OffsetPrefetch(locates, batches)

    def stop(self) -> None:
        """Stop what `read_ahead` started; waiting threads get CancelledError."""
        super().stop()
        self._offsets.stop()

    def close(self) -> None:
        """Stop reading ahead and release the maps."""
        self.stop()
        self._files.close()
        self._gathers.clear()
        self._addresses.close()

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        """Read adjacent rows with plain reads, which are as fast as copies from the map."""
        if self._ahead is not None:
            self._ahead.wait_for(stop)
        for name, target in out.items():
            runs, done = self._addresses.runs(name, start, stop), 0
            if runs is None or (len(runs) * READ_BYTES > target.nbytes and SIGBUS_HANDLED and len(runs) > 1):
                self.read_each(name, np.arange(start, stop), target)
                continue
            for position, count in runs:
                self._read_from(position, target[done : done + count])
                done += count

    def _read_rows(self, rows: Index, out: Mapping[str, Array]) -> None:
        if self._ahead is not None:
            self._ahead.fetch(rows, list(out))
        for name, target in out.items():
            self.read_each(name, rows, target)
        if self._ahead is not None:
            self._ahead.begin()

    def _gather(self, name: str, rows: Index, target: Array) -> None:
        if name not in self._gathers:
            raise ValueError("this reader is closed")
        # no local variable: an error's frame would keep the map
        self._gathers[name](rows, self._offsets.of(name, rows), target)
        self._guard.check()

    def read_each(self, name: str, rows: Index, target: Array) -> None:
        """Read rows one by one into memory of the caller."""
        if SIGBUS_HANDLED:
            self._gather(name, rows, target)
            return
        for slot, position in enumerate(self._addresses.positions(name, rows).tolist()):
            self._read_from(position, target[slot : slot + 1])

    def _read_from(self, position: int, target: Array) -> None:
        """Fill an array with the bytes from a position on."""
        number, offset = self._addresses.within(position)
        with self._files.descriptor(number) as file:
            read_into(file, self._addresses.files[number], offset, np.frombuffer(raw_bytes(target), np.uint8))


def _opened(cold: bool, path: Path) -> int:
    descriptor = open_plain(path)
    if cold:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    return descriptor
