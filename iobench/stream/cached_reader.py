"""Read rows, or samples of different lengths, through the page cache; a thread fills it if files are cold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from iobench.formats import (
    Array,
    Index,
    Placement,
    Ragged,
    Rows,
    Schema,
    Spans,
    index_of,
    offsets_of,
    raw_bytes,
)
from iobench.formats.placement import pieces_of
from iobench.host.maps import SIGBUS_HANDLED
from iobench.stream.addresses import AddressSpace, RowAddresses
from iobench.stream.gather import Gather, gather_for, gather_spans
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

    def gather(self, rows: Index, out: Mapping[str, Array], alone: bool) -> None:
        """Copy valid rows that are in memory, by all of torch's threads or in this thread `alone`."""
        for name, target in out.items():
            gather = self._gathers[name]
            (gather if alone else gather.in_torch)(rows, target)
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


class SpanAddresses(AddressSpace):
    """Positions of samples of different lengths; CorruptArtifact if they do not lie in their file.

    Where samples begin is kept in memory: 8 bytes per sample of each field, 16 if they are not adjacent.
    `widths` are mean lengths in bytes.
    """

    def __init__(self, schema: Schema, placements: Mapping[str, Spans]) -> None:
        places = {field.name: placements[field.name] for field in schema.fields}
        super().__init__(schema, (path for place in places.values() for path in place.files))
        self._edges: dict[str, tuple[Index, Index]] = {}
        for field in schema.fields:
            place = places[field.name]
            begins, ends = place.edges(self.samples, self.starts[self.numbers(place.files)])
            for rows in pieces_of(self.samples):
                self.check_inside(field.name, place.files, *place.locate(rows), ends[rows] - begins[rows])
            self._edges[field.name] = begins, ends
            self.widths[field.name] = max(1, int((ends - begins).sum()) // self.samples)

    def byte_ranges(self, name: str, rows: Index) -> tuple[Index, Index]:
        """Return start and end positions of these rows of a field."""
        begins, ends = self._of(name)
        return begins[rows], ends[rows]

    def stretches(self, name: str, start: int, stop: int) -> tuple[Index, Index]:
        """Return start and end positions of these rows of a field, adjacent rows together."""
        begins, ends = self._of(name)
        if self.is_adjacent(name):
            return begins[start : start + 1], ends[stop - 1 : stop]
        return begins[start:stop], ends[start:stop]

    def is_adjacent(self, name: str) -> bool:
        """Return True if each sample begins where the one before ends."""
        begins, ends = self._of(name)
        return begins.base is ends.base is not None

    def close(self) -> None:
        """Release the offsets. Later calls raise ValueError."""
        self._edges.clear()

    def _of(self, name: str) -> tuple[Index, Index]:
        if name not in self._edges:
            raise ValueError("this reader is closed")
        return self._edges[name]


class SpanReader(ReadaheadReader):
    """Reads ragged fields into memory whose offsets the caller has set; see `offsets`.

    Raises CorruptArtifact if a file ends too early, OSError if the disk fails.
    """

    decodes = False

    def __init__(self, schema: Schema, placements: Mapping[str, Spans], cold: bool) -> None:
        self._addresses = SpanAddresses(schema, placements)
        adjacent = all(self._addresses.is_adjacent(field.name) for field in schema.fields)
        super().__init__(schema, self._addresses, cold, reads_slices=adjacent)
        self._files = MappedFiles(self._addresses, cold, adjacent)

    def offsets(self, name: str, rows: Rows) -> Index:
        """Return the offsets of a batch of these rows of a ragged field."""
        checked, _ = self._checked(rows)
        low, high = self._addresses.byte_ranges(name, index_of(checked))
        return offsets_of((high - low) // self.schema.field(name).sample_bytes)

    def close(self) -> None:
        """Stop reading ahead and release the maps."""
        self.stop()
        self._files.close()
        self._addresses.close()

    def _check_out(self, count: int, out: Mapping[str, Any]) -> None:
        for name, field in out.items():
            own = self.schema.field(name)
            if not isinstance(field, Ragged) or len(field) != count or field.dtype != np.dtype(own.dtype):
                raise ValueError(f"out[{name!r}] does not hold {count} samples of {own.typed}")

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Any]) -> None:
        self.wait_for(stop)
        rows = np.arange(start, stop)
        for name, field in out.items():
            if field.nbytes and self._addresses.is_adjacent(name):
                low, _ = self._addresses.byte_ranges(name, rows[:1])
                self._files.copy(int(low[0]), field.values)
            else:
                self._copy_rows(rows, {name: field})

    def _copy_rows(self, rows: Index, out: Mapping[str, Any]) -> None:
        for name, field in out.items():
            if field.nbytes:
                self._gather(name, rows, field.values)

    def _gather(self, name: str, rows: Index, values: Array) -> None:
        low, high = self._addresses.byte_ranges(name, rows)
        target = np.frombuffer(raw_bytes(values), np.uint8)
        if SIGBUS_HANDLED:
            gather_spans(self._files.memory, low, high - low, target)
            self._files.check()
            return
        targets = offsets_of(high - low).tolist()
        for position, first, last in zip(low.tolist(), targets, targets[1:], strict=False):
            self._files.read(position, target[first:last])
