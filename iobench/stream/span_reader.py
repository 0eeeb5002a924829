"""Read samples of different lengths through the page cache, which a readahead thread fills if it is cold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from iobench.base.errors import corrupt
from iobench.formats import Array, Ragged, Rows, Schema, Spans, offsets_of, raw_bytes
from iobench.host.bus_errors import SIGBUS_HANDLED
from iobench.stream.addresses import NEAR_BYTES, AddressSpace, Index, merged
from iobench.stream.mapped_files import MappedFiles
from iobench.stream.readahead import ReadaheadReader
from iobench.stream.span_gather import gather_spans


class SpanAddresses(AddressSpace):
    """Positions of samples of different lengths; CorruptArtifact if they do not lie in their file.

    The offsets are copied into memory: 8 bytes per sample of each field. `widths` are mean lengths in bytes.
    """

    def __init__(self, schema: Schema, placements: Mapping[str, Spans]) -> None:
        places = {field.name: placements[field.name] for field in schema.fields}
        super().__init__(schema, (path for place in places.values() for path in place.files))
        self._positions: dict[str, Index] = {}
        for field in schema.fields:
            place, (number,) = places[field.name], self.numbers(places[field.name].files)
            ends = place.offset + np.asarray(place.offsets[: self.samples + 1]) * place.stride
            if int(ends[-1]) > self.sizes[number]:
                raise corrupt(
                    place.files[0], f"{int(ends[-1])} bytes", f"{self.sizes[number]} bytes", kind="truncated"
                )
            self._positions[field.name] = ends + self.starts[number]
            self.widths[field.name] = max(1, int(ends[-1] - ends[0]) // self.samples)

    def byte_ranges(self, name: str, rows: Index) -> tuple[Index, Index]:
        """Return start and end positions of these rows of a field."""
        positions = self._of(name)
        return positions[rows], positions[rows + 1]

    def ranges(self, start: int, stop: int, names: Sequence[str]) -> tuple[Index, Index]:
        """Return the sorted, merged position ranges of the rows `start` to `stop` - 1 of these fields."""
        edges = np.array([self._of(name)[[start, stop]] for name in names])
        return merged(edges[:, 0], edges[:, 1], NEAR_BYTES)

    def close(self) -> None:
        """Release the offsets. Later calls raise ValueError."""
        self._positions.clear()

    def _of(self, name: str) -> Index:
        if name not in self._positions:
            raise ValueError("this reader is closed")
        return self._positions[name]


class SpanReader(ReadaheadReader):
    """Reads ragged fields into memory whose offsets the caller has set; see `offsets`.

    Raises CorruptArtifact if a file ends too early, OSError if the disk fails.
    """

    decodes = False

    def __init__(self, schema: Schema, placements: Mapping[str, Spans], cold: bool) -> None:
        self._addresses = SpanAddresses(schema, placements)
        super().__init__(schema, self._addresses, cold)
        self._files = MappedFiles(self._addresses, cold, reads_slices=True)

    def offsets(self, name: str, rows: Rows) -> Index:
        """Return the offsets of a batch of these rows of a ragged field."""
        checked, _ = self._checked(rows)
        index = np.arange(checked.start, checked.stop) if isinstance(checked, slice) else checked
        low, high = self._addresses.byte_ranges(name, index)
        return offsets_of((high - low) // self.schema.field(name).sample_bytes)

    def read_ahead(self, batches: Sequence[Rows]) -> None:
        """Start to fill the page cache with these batches if it is cold; slices are left to the kernel."""
        if isinstance(batches[0], slice):
            self.stop()
        else:
            super().read_ahead(batches)

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
        for name, field in out.items():
            low, _ = self._addresses.byte_ranges(name, np.array([start]))
            if field.nbytes:
                self._files.copy(int(low[0]), field.values)

    def _read_rows(self, rows: Index, out: Mapping[str, Any]) -> None:
        if self._ahead is not None:
            self._ahead.fetch(rows, list(out))
        for name, field in out.items():
            if field.nbytes:
                self._gather(name, rows, field.values)
        if self._ahead is not None:
            self._ahead.begin()

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
