"""Read rows through the page cache, which a readahead thread fills if the files are cold."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from iobench.formats import Array, Placement, Rows, Schema, raw_bytes
from iobench.host.bus_errors import SIGBUS_HANDLED
from iobench.host.maps import GuardedMap
from iobench.stream.addresses import Index, RowAddresses
from iobench.stream.files import DescriptorPool, open_plain, read_into
from iobench.stream.gather import Gather, gather_for
from iobench.stream.readahead import ReadaheadReader

RUN_BYTES = 64 << 10  # adjacent rows of at least this size are copied together, others gathered


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
        self._memory = mapped.bytes
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

    def read_ahead(self, batches: Sequence[Rows]) -> None:
        """Start to fill the page cache with these batches if the files are cold.

        Slices of whole arrays are left to the kernel's readahead.
        """
        if self._reads_slices and isinstance(batches[0], slice):
            self.stop()
        else:
            super().read_ahead(batches)

    def close(self) -> None:
        """Stop reading ahead and release the maps."""
        self.stop()
        self._files.close()
        self._gathers.clear()
        self._memory = self._memory[:0].copy()
        self._addresses.close()

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        """Copy adjacent rows from the map, or with plain reads if they may not be in memory."""
        if self._ahead is not None:
            self._ahead.wait_for(stop)
        for name, target in out.items():
            runs, done = self._addresses.runs(name, start, stop), 0
            if runs is None or (len(runs) * RUN_BYTES > target.nbytes and SIGBUS_HANDLED and len(runs) > 1):
                self.read_each(name, np.arange(start, stop), target)
                continue
            for position, count in runs:
                self._copy(position, target[done : done + count])
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
        self._gathers[name](rows, target)
        self._guard.check()

    def read_each(self, name: str, rows: Index, target: Array) -> None:
        """Read rows one by one into memory of the caller."""
        if SIGBUS_HANDLED:
            self._gather(name, rows, target)
            return
        for slot, position in enumerate(self._addresses.positions(name, rows).tolist()):
            self._read_from(position, target[slot : slot + 1])

    def _copy(self, position: int, target: Array) -> None:
        """Fill an array with the bytes from a position on, from the map if they are in memory."""
        if self.cold or not SIGBUS_HANDLED:
            self._read_from(position, target)
            return
        into = np.frombuffer(raw_bytes(target), np.uint8)
        into[:] = self._memory[position : position + len(into)]
        self._guard.check()

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
