"""One reader over fields that are read in different ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from iobench.formats import Array, Reader, Rows, Schema
from iobench.stream.block_reader import BlockReader
from iobench.stream.cached_reader import CachedReader
from iobench.stream.span_reader import SpanReader

Part: TypeAlias = CachedReader | BlockReader | SpanReader


class CompositeReader(Reader):
    """Combines readers, each of which reads some of the fields."""

    def __init__(self, schema: Schema, parts: Sequence[Part]) -> None:
        super().__init__(schema)
        self._parts = tuple(parts)
        self.cold = any(part.cold for part in parts)
        self.decodes = any(part.decodes for part in parts)

    def offsets(self, name: str, rows: Rows) -> npt.NDArray[np.int64]:
        """Return the offsets of a batch of these rows of a ragged field."""
        part = next(part for part in self._parts if any(name == f.name for f in part.schema.fields))
        assert isinstance(part, SpanReader)
        return part.offsets(name, rows)

    def read_ahead(self, batches: Sequence[Rows]) -> None:
        """Start to read these batches into the page cache; see `ReadaheadReader.read_ahead`."""
        for part in self._parts:
            part.read_ahead(batches)

    def stop(self) -> None:
        """Stop reading ahead; waiting threads get CancelledError."""
        for part in self._parts:
            part.stop()

    def close(self) -> None:
        """Close all readers."""
        for part in self._parts:
            part.close()

    def _check_out(self, count: int, out: Mapping[str, Array]) -> None:
        """Leave the check to the parts."""

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        self._read(slice(start, stop), out)

    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        self._read(rows, out)

    def _read(self, rows: Any, out: Mapping[str, Array]) -> None:
        for part in self._parts:
            names = {field.name for field in part.schema.fields}
            part.read(rows, {name: array for name, array in out.items() if name in names})
