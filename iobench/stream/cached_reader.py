"""Read rows through the page cache, which a readahead thread fills if the files are cold."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from iobench.formats import Array, Index, Placement, Schema
from iobench.host.maps import SIGBUS_HANDLED
from iobench.stream.addresses import RowAddresses
from iobench.stream.gather import Gather, gather_for
from iobench.stream.mapped_files import MappedFiles
from iobench.stream.readahead import ReadaheadReader

RUN_BYTES = 64 << 10  # adjacent rows of at least this size are copied together, others gathered


class CachedReader(ReadaheadReader):
    """Copies rows from maps; `read_ahead` brings those of cold files into the page cache before.

    Raises CorruptArtifact if a file ends too early, OSError if the disk fails. An unreadable or truncated
    page of a map is an OSError as well (see `host.maps`), unless other code installs a handler of bus
    errors while the reader is open. On machines where bus errors cannot be handled, rows are read one by one
    instead of mapped.

    `addresses` has the positions of the rows. With `views`, cold slices are read ahead, too.
    """

    decodes = False

    def __init__(
        self, schema: Schema, placements: Mapping[str, Placement], cold: bool, views: bool = False
    ) -> None:
        self.addresses = RowAddresses(schema, placements)
        contiguous = all(self.addresses.start_if_contiguous(f.name) is not None for f in schema.fields)
        super().__init__(schema, self.addresses, cold, reads_slices=contiguous and not views)
        self._files = MappedFiles(self.addresses, cold, contiguous)
        self._gathers: dict[str, Gather] = {
            f.name: gather_for(self.addresses, f.name, self._files.memory) for f in schema.fields
        }

    def close(self) -> None:
        """Stop reading ahead and release the maps."""
        self.stop()
        self._files.close()
        self._gathers.clear()
        self.addresses.close()

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        """Copy adjacent rows from the map, or with plain reads if they may not be in memory."""
        self.wait_for(stop)
        for name, target in out.items():
            runs, done = self.addresses.runs(name, start, stop), 0
            if runs is None or (len(runs) * RUN_BYTES > target.nbytes and SIGBUS_HANDLED and len(runs) > 1):
                self.read_each(name, np.arange(start, stop), target)
                continue
            for position, count in runs:
                self._files.copy(position, target[done : done + count])
                done += count

    def _copy_rows(self, rows: Index, out: Mapping[str, Array]) -> None:
        for name, target in out.items():
            self.read_each(name, rows, target)

    def gather(self, rows: Index, out: Mapping[str, Array]) -> None:
        """Copy valid rows that are in memory, by all of torch's threads."""
        for name, target in out.items():
            self._gathers[name].in_torch(rows, target)
        self._files.check()

    def _gather(self, name: str, rows: Index, target: Array) -> None:
        if name not in self._gathers:
            raise ValueError("this reader is closed")
        # no local variable: an error's frame would keep the map
        self._gathers[name](rows, target)
        self._files.check()

    def read_each(self, name: str, rows: Index, target: Array) -> None:
        """Read rows one by one into memory of the caller."""
        if SIGBUS_HANDLED:
            self._gather(name, rows, target)
            return
        for slot, position in enumerate(self.addresses.positions(name, rows).tolist()):
            self._files.read(position, target[slot : slot + 1])
