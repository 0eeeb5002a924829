"""Reader of arrays that are memory maps of files, shared by npy, memmap and safetensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.formats._placement import Placement
from iobench.formats._ragged import Ragged, map_values
from iobench.formats._reader import Convert, Reader, Rows, identity, unclosed
from iobench.formats._schema import Array, Batch, Schema

# One copy of 12 MiB or more out of a cold map starts at its tail and defeats the kernel's readahead
# (0.8 instead of 2.5 GB/s), so slices are copied in smaller pieces.
PIECE_BYTES = 8 << 20


class MappedReader(Reader):
    """Copies rows out of one mapped array per field.

    Batches are read from plain views, because `np.memmap` spends a third of each index in its own code;
    `sample` indexes the very arrays, as a user's `__getitem__` does, and costs as much.
    """

    def __init__(self, schema: Schema, arrays: Batch, places: Mapping[str, Placement]) -> None:
        super().__init__(schema)
        self._arrays: Batch | None = {name: np.asarray(array) for name, array in arrays.items()}
        self._columns = tuple(arrays.items())
        self._places = places
        self._pieces = {f.name: max(1, PIECE_BYTES // f.sample_bytes) for f in schema.fields}

    def placement(self) -> Mapping[str, Placement]:
        """Return the location of each field in its own file."""
        return self._places

    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """Return one sample as read-only views of the map."""
        if self._arrays is None:
            raise ValueError("this reader is closed")
        sample = {}
        for name, array in self._columns:
            sample[name] = convert(array[row, ...])
        return sample

    def close(self) -> None:
        """Drop the maps; they are released with the last view of them."""
        self._arrays, self._columns = None, ()

    def _mapped(self) -> Batch:
        return unclosed(self._arrays)

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        arrays = self._mapped()
        for name, target in out.items():
            array, step = arrays[name], self._pieces[name]
            for low in range(start, stop, step):
                high = min(low + step, stop)
                target[low - start : high - start] = array[low:high]

    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        arrays = self._mapped()
        for name, target in out.items():
            # "clip" never clips here because the rows were checked; with "raise", take copies twice
            arrays[name].take(rows, axis=0, out=target, mode="clip")


class RaggedReader(MappedReader):
    """Reader of mapped arrays of which some are `Ragged`; these have no placement."""

    def __init__(
        self, schema: Schema, arrays: Batch, places: Mapping[str, Placement], ragged: Mapping[str, Ragged]
    ) -> None:
        super().__init__(schema, arrays, places)
        self._ragged: Mapping[str, Ragged] = ragged

    def batch(self, rows: Rows | Sequence[int]) -> Batch:
        """Return the rows in new arrays, ragged fields as `Ragged`; IndexError outside 0..len-1."""
        batch, (checked, _) = super().batch(rows), self._checked(rows)
        for name, ragged in self._ragged.items():
            some: Any = ragged[checked]
            batch[name] = map_values(np.array, some) if isinstance(checked, slice) else some
        return {field.name: batch[field.name] for field in self.schema.fields}

    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """Return one sample as read-only views of the map; IndexError outside 0..len-1."""
        self._check_row(row)
        sample = super().sample(row, convert)
        for name, ragged in self._ragged.items():
            sample[name] = convert(ragged.values[ragged.offsets[row] : ragged.offsets[row + 1]])
        return {field.name: sample[field.name] for field in self.schema.fields}

    def close(self) -> None:
        """Drop all maps."""
        super().close()
        self._ragged = {}
