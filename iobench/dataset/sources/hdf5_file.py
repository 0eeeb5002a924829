"""The user's HDF5 file: every dataset in it becomes a field."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from iobench.dataset.sources._base import BATCH_BYTES, FileSource, native_dtype, schema_of
from iobench.errors import SourceError
from iobench.formats import Batch

# What h5py raises for damaged metadata, damaged chunks and kinds of number that NumPy has not.
DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError)


class Hdf5File(FileSource):
    """All datasets of the file, nested ones named by their path; they share one leading axis."""

    kind = "hdf5"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._keys: list[str] = []
        try:
            with h5py.File(path, "r", locking=False) as file:
                file.visititems(self._collect)
                shapes = {key: (file[key].shape or (), file[key].dtype) for key in self._keys}
        except DAMAGE as error:
            raise _unreadable(path, error) from error
        self.schema = schema_of(path, shapes)

    def batches(self) -> Iterator[Batch]:
        """Slices along the leading axis."""
        rows = self.schema.batch_rows(BATCH_BYTES)
        named = list(zip(self.schema.fields, self._keys, strict=True))
        try:
            with h5py.File(self.path, "r", locking=False) as file:
                for start in range(0, self.schema.samples, rows):
                    pieces = {field.name: file[key][start : start + rows] for field, key in named}
                    yield {n: np.ascontiguousarray(a, native_dtype(a.dtype)) for n, a in pieces.items()}
        except DAMAGE as error:
            raise _unreadable(self.path, error) from error

    def _collect(self, name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            self._keys.append(name)


def _unreadable(path: Path, error: Exception) -> SourceError:
    return SourceError(f"--source {path}: cannot be read as HDF5: {str(error).splitlines()[0]}")
