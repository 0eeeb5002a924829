"""Reader of HDF5 through h5py, which also locates rows in the file for direct reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from iobench.base.errors import corrupt
from iobench.base.text import reason
from iobench.formats._arrays import native_dtype
from iobench.formats._placement import Blocks, Placement
from iobench.formats._reader import Convert, Reader, Rows, identity
from iobench.formats._schema import Array, Batch, Schema
from iobench.formats.hdf5.chunks import encoded, placed


class Hdf5Reader(Reader):
    """Reads through h5py, which admits one thread at a time under its own lock."""

    def __init__(
        self, schema: Schema, path: Path, file: h5py.File, datasets: dict[str, h5py.Dataset]
    ) -> None:
        super().__init__(schema)
        self._path, self._file, self._datasets = path, file, datasets
        self._native = all(dataset.dtype.isnative for dataset in datasets.values())

    def placement(self) -> dict[str, Placement]:
        """Return the location of each field that is contiguous, or in unfiltered chunks of whole samples."""
        if not self._datasets:
            raise ValueError("this reader is closed")
        places = {name: placed(dataset, self._path) for name, dataset in self._native_ones()}
        return {name: place for name, place in places.items() if place is not None}

    def blocks(self) -> list[Blocks]:
        """Return the chunks of each field that is compressed by deflate, shuffled or not."""
        if not self._datasets:
            raise ValueError("this reader is closed")
        tables = [encoded(dataset, name, self._path) for name, dataset in self._native_ones()]
        return [blocks for blocks in tables if blocks is not None]

    def _native_ones(self) -> list[tuple[str, h5py.Dataset]]:
        """Return the datasets in this machine's byte order; external files may hold others."""
        return [(name, dataset) for name, dataset in self._datasets.items() if dataset.dtype.isnative]

    def batch(self, rows: Rows | Sequence[int]) -> Batch:
        """Return the rows in new arrays; a slice uses h5py's fast path."""
        checked, _ = self._checked(rows)
        if not isinstance(checked, slice) or not self._datasets or not self._native:
            return super().batch(checked)
        try:
            return {name: dataset[checked] for name, dataset in self._datasets.items()}
        except OSError as error:
            raise corrupt(self._path, "readable chunks", reason(error)) from error

    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """Return one sample in new arrays."""
        if not self._datasets:
            raise ValueError("this reader is closed")
        sample = {}
        try:
            for name, dataset in self._datasets.items():
                value = dataset[row]  # what h5py returns of a scalar is no array
                sample[name] = convert(np.asarray(value, None if self._native else native_dtype(value.dtype)))
            return sample
        except OSError as error:
            raise corrupt(self._path, "readable samples", reason(error)) from error

    def close(self) -> None:
        """Close the file."""
        self._datasets = {}
        self._file.close()

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        self._read(lambda dataset, target: _read_slab(dataset, start, target), out)

    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        # h5py takes indices only in increasing order and without duplicates
        unique, inverse = np.unique(rows, return_inverse=True)

        def gather(dataset: h5py.Dataset, target: Array) -> None:
            if dataset.chunks is None:
                some = np.asarray(dataset[unique], target.dtype)
                np.take(some, inverse, axis=0, out=target, mode="clip")
            else:
                _gather_chunked(dataset, unique, inverse, target)

        self._read(gather, out)

    def _read(self, gather: Any, out: Mapping[str, Array]) -> None:
        if not self._datasets:
            raise ValueError("this reader is closed")
        try:
            for name, target in out.items():
                gather(self._datasets[name], target)
        except OSError as error:
            raise corrupt(self._path, "readable chunks", reason(error)) from error


def _read_slab(dataset: h5py.Dataset, start: int, target: Array) -> None:
    """Read consecutive rows from `start` into `target`.

    Uses the low-level call, because `read_direct` spends longer on its selection than on 128 KiB.
    """
    selected = dataset.id.get_space()
    selected.select_hyperslab((start,) + (0,) * (target.ndim - 1), target.shape)
    dataset.id.read(h5py.h5s.create_simple(target.shape), selected, target)


def _gather_chunked(
    dataset: h5py.Dataset,
    unique: npt.NDArray[np.int64],
    inverse: npt.NDArray[np.int64],
    target: Array,
) -> None:
    """Read row by row in file order, so that each chunk is decoded once while it is cached.

    A list selection over chunks of few samples is up to 50 times slower than this loop.
    """
    order = np.argsort(inverse, kind="stable")
    for slot, row in zip(order.tolist(), unique[inverse[order]].tolist(), strict=True):
        target[slot] = dataset[row]
