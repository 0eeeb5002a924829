"""Reader of arrays that are memory maps of files, shared by npy, memmap and safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.formats._placement import Placement
from iobench.formats._reader import Convert, Reader, identity, unclosed
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

    def array(self, name: str) -> Array:
        """Return the map of a field."""
        return self._mapped()[name]

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
