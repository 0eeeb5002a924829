"""The first rows of stored data that hold more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.formats._placement import Blocks, Placement
from iobench.formats._reader import Convert, Reader, Rows, TimingWrapper, identity
from iobench.formats._schema import Array, Batch, Schema


class FirstRows(Reader):
    """Reads the first rows of another reader, in that reader's own way, and closes it when it is closed."""

    def __init__(self, whole: Reader, schema: Schema) -> None:
        super().__init__(schema)
        self._whole = whole

    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """Return one sample as the other reader does; IndexError outside 0..len-1."""
        self._check_row(row)
        return self._whole.sample(row, convert)

    def batch(self, rows: Rows | Sequence[int]) -> Batch:
        """Return the rows as the other reader does."""
        return self._whole.batch(self._checked(rows)[0])

    def native(self, rows: Rows) -> Any:
        """Return one batch as the other reader does."""
        return self._whole.native(self._checked(rows)[0])

    def time_decoding(self, timed: TimingWrapper) -> None:
        """Time the decoding of the other reader."""
        self._whole.time_decoding(timed)

    def placement(self) -> Mapping[str, Placement]:
        """Return the locations of all rows: the first rows lie in the same places."""
        return self._whole.placement()

    def blocks(self) -> Sequence[Blocks]:
        """Return the blocks that hold the first rows; of the last one, only these are decoded into `out`."""
        return [self._cut(table) for table in self._whole.blocks()]

    def _cut(self, table: Blocks) -> Blocks:
        ends = np.append(table.first[1:], len(self._whole))
        last = int(np.searchsorted(ends, len(self)))  # the block with the last row
        rows = int(ends[last] - table.first[last])

        def decode(number: int, stored: memoryview, out: Mapping[str, Array]) -> None:
            if number != last:
                table.decode(number, stored, out)
                return
            block = {name: np.empty((rows, *array.shape[1:]), array.dtype) for name, array in out.items()}
            table.decode(number, stored, block)
            for name, array in out.items():
                array[...] = block[name][: len(array)]

        kept = slice(0, last + 1)
        return replace(
            table,
            files=table.files[: int(table.file[kept].max()) + 1],
            first=table.first[kept],
            file=table.file[kept],
            offset=table.offset[kept],
            stored=table.stored[kept],
            decode=decode,
        )

    def close(self) -> None:
        """Close the other reader."""
        self._whole.close()

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        self._whole._read_slice(start, stop, out)

    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        self._whole._read_rows(rows, out)
