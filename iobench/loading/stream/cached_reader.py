"""Rows read through the page cache, which is filled ahead of them where it is not full."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from iobench.formats import Array, Placement, Rows, Schema, raw_bytes
from iobench.host.bus_errors import SIGBUS_HANDLED
from iobench.host.maps import GuardedMap
from iobench.loading.stream.addresses import RowAddresses
from iobench.loading.stream.files import DescriptorPool, open_plain, read_into
from iobench.loading.stream.gather import Gather, gather_for
from iobench.loading.stream.offset_prefetch import OffsetPrefetch
from iobench.loading.stream.readahead import ReadaheadReader

Index = npt.NDArray[np.int64]

READ_BYTES = 64 << 10  # rows that follow each other without a gap for as long are read, others gathered


class CachedReader(ReadaheadReader):
    """Copies rows out of maps; of cold files, `read_ahead` brings them into the cache before.

    CorruptArtifact where a file ends too soon, OSError where the disk fails. A page of a map that
    cannot be read, or is cut off while it is read, is an OSError too (see `host.bus_errors`): not so
    where somebody else catches bus errors once this is open. Machines on which they cannot be caught
    have rows read one by one instead.
    """

    def __init__(self, schema: Schema, placements: Mapping[str, Placement], cold: bool) -> None:
        self._places = RowAddresses(schema, placements)
        super().__init__(schema, self._places, cold)
        mapped = GuardedMap(self._places.files, self._places.sizes)
        self._guard = mapped.guard  # an error's traceback keeps it, but not the map
        self._gathers: dict[str, Gather] = {
            f.name: gather_for(self._places, f.name, mapped.bytes) for f in schema.fields
        }
        if cold:  # `read_ahead` reads ahead, and a fault must not start a stream of its own beside it
            mapped.advise_random()
        self._files = DescriptorPool(self._places.files, partial(_opened, cold))
        self._located = OffsetPrefetch({}, [])

    def read_ahead(self, batches: Sequence[Rows]) -> None:
        """Begin to find where the rows of these batches lie, and to fill the cache if it is cold."""
        super().read_ahead(batches)
        locates = {name: gather.locate for name, gather in self._gathers.items() if gather.locate}
        self._located = OffsetPrefetch(locates, batches)

    def stop(self) -> None:
        """End what `read_ahead` began; whoever waits for it gets CancelledError."""
        super().stop()
        self._located.stop()

    def close(self) -> None:
        """End reading ahead and drop the maps."""
        self.stop()
        self._files.close()
        self._gathers.clear()
        self._places.close()

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        """By plain reads where rows follow each other, which are as fast as copies out of the map."""
        if self._ahead is not None:
            self._ahead.wait_for(stop)
        for name, target in out.items():
            runs, done = self._places.runs(name, start, stop), 0
            if runs is None or (len(runs) * READ_BYTES > target.nbytes and SIGBUS_HANDLED and len(runs) > 1):
                self._read_each(name, np.arange(start, stop), target)
                continue
            for position, count in runs:
                self._read_from(position, target[done : done + count])
                done += count

    def _read_rows(self, rows: Index, out: Mapping[str, Array]) -> None:
        if self._ahead is not None:
            self._ahead.fetch(rows, list(out))
        for name, target in out.items():
            self._read_each(name, rows, target)
        if self._ahead is not None:
            self._ahead.begin()

    def _gather(self, name: str, rows: Index, target: Array) -> None:
        if name not in self._gathers:
            raise ValueError("this reader is closed")
        self._gathers[name](rows, self._located.of(name, rows), target)  # an error's frame must not keep it
        self._guard.check()

    def _read_each(self, name: str, rows: Index, target: Array) -> None:
        if SIGBUS_HANDLED:
            self._gather(name, rows, target)
            return
        for slot, position in enumerate(self._places.positions(name, rows).tolist()):
            self._read_from(position, target[slot : slot + 1])

    def _read_from(self, position: int, target: Array) -> None:
        """Fill an array with what lies from a position on."""
        number, offset = self._places.within(position)
        with self._files.descriptor(number) as file:
            read_into(file, self._places.files[number], offset, np.frombuffer(raw_bytes(target), np.uint8))


def _opened(cold: bool, path: Path) -> int:
    descriptor = open_plain(path)
    if cold:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    return descriptor
