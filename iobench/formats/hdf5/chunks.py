"""Locations of an HDF5 dataset's samples in its file: contiguous, or in plain or filtered chunks."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt, expecting
from iobench.formats._placement import Blocks, Chunked, Index, Placement, Strided
from iobench.formats._schema import Array, raw_bytes


@dataclass(frozen=True)
class Hdf5Chunks:
    """A dataset's chunks in row order: byte offset, stored bytes and filter mask of each."""

    rows: int  # per chunk; the last may hold fewer
    offset: Index
    stored: Index
    mask: Index

    @property
    def first(self) -> Index:
        """First row of each chunk."""
        return np.arange(len(self.offset), dtype=np.int64) * self.rows


def placed(dataset: h5py.Dataset, path: Path) -> Placement | None:
    """Return the location of samples that are stored as in memory; None if they are not."""
    if not _stored_alike(dataset):
        return None
    width = sample_bytes(dataset)
    offset = dataset.id.get_offset()
    if offset is not None:
        return Strided((path,), int(offset), width)
    if dataset.id.get_create_plist().get_nfilters():
        return None
    chunks = chunks_of(dataset)
    if chunks is None or (chunks.stored != chunks.rows * width).any():
        return None
    return Chunked((path,), chunks.first, np.zeros_like(chunks.offset), chunks.offset, width)


def encoded(dataset: h5py.Dataset, name: str, path: Path) -> Blocks | None:
    """Return the chunks of a dataset as blocks; None unless its filters are deflate and shuffle.

    No library offers HDF5's other filters, lzf among them, on their own.
    """
    plist = dataset.id.get_create_plist()
    filters = tuple(plist.get_filter(number)[0] for number in range(plist.get_nfilters()))
    if not _stored_alike(dataset):
        return None
    if not filters or set(filters) - {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE}:
        return None
    chunks = chunks_of(dataset)
    if chunks is None:
        return None
    width, item = sample_bytes(dataset), int(dataset.dtype.itemsize)
    decode = ChunkDecoder(path, name, chunks.rows * width, item, filters, chunks.mask)
    file = np.zeros_like(chunks.offset)
    return Blocks((name,), (path,), chunks.first, file, chunks.offset, chunks.stored, decode)


@dataclass(frozen=True)
class ChunkDecoder:
    """Undoes a dataset's filters, last one first.

    `filters` are in the order of application; `mask` has a bit per chunk and skipped filter.
    """

    path: Path
    name: str
    chunk_bytes: int
    item_bytes: int
    filters: tuple[int, ...]
    mask: Index

    def __call__(self, number: int, stored: memoryview, out: Mapping[str, Array]) -> None:
        """Decode a chunk into the dataset's array of `out`."""
        data: Any = stored
        for place, kind in reversed(tuple(enumerate(self.filters))):
            if self.mask[number] >> place & 1:
                continue
            data = self._inflated(number, data) if kind == h5py.h5z.FILTER_DEFLATE else self._ordered(data)
        if len(data) != self.chunk_bytes:
            raise self._damaged(number, f"{len(data)} bytes")
        if self.name in out:
            target = np.frombuffer(raw_bytes(out[self.name]), np.uint8)
            target[:] = np.frombuffer(data, np.uint8, len(target))

    def _inflated(self, number: int, data: Any) -> bytes:
        """Inflate data, at most to the size of a chunk plus one byte."""
        inflate = zlib.decompressobj()
        try:
            inflated = inflate.decompress(data, self.chunk_bytes + 1)
        except zlib.error as error:
            raise self._damaged(number, error) from error
        if not inflate.eof:
            raise self._damaged(number, f"at least {len(inflated)} bytes and no end")
        return inflated

    def _ordered(self, data: Any) -> Any:
        """Undo shuffle, which stores all first bytes of elements first; incomplete elements are unchanged."""
        whole = len(data) // self.item_bytes * self.item_bytes
        if self.item_bytes == 1 or not whole:
            return data
        ordered = np.empty(len(data), np.uint8)
        planes = np.frombuffer(data, np.uint8, whole).reshape(self.item_bytes, -1)
        ordered[:whole].reshape(-1, self.item_bytes)[:] = planes.T
        ordered[whole:] = np.frombuffer(data, np.uint8)[whole:]
        return ordered.data

    def _damaged(self, number: int, found: object) -> CorruptArtifact:
        return corrupt(self.path, f"{self.chunk_bytes} bytes in chunk {number} of {self.name}", found)


def _stored_alike(dataset: h5py.Dataset) -> bool:
    """Return True if elements are stored as NumPy's; bools may be stored in integers of any size."""
    return bool(dataset.id.get_type().get_size() == dataset.dtype.itemsize)


def chunks_of(dataset: h5py.Dataset) -> Hdf5Chunks | None:
    """Return the chunks of a dataset; None unless all are allocated and hold whole samples.

    CorruptArtifact if the chunk index is damaged.
    """
    shape, chunk = dataset.shape, dataset.chunks
    if chunk is None or chunk[1:] != shape[1:] or dataset.file.userblock_size:
        return None  # HDF5 versions differ in whether addresses count from the end of a user block
    count = -(-shape[0] // chunk[0])
    table = np.full((count, 3), -1, np.int64)

    def note(info: h5py.h5d.StoreInfo) -> None:
        number = info.chunk_offset[0] // chunk[0]
        if number < count:
            table[number] = info.byte_offset, info.size, info.filter_mask

    expected = f"an index of the chunks of {dataset.name}"
    with expecting(Path(dataset.file.filename), expected, (RuntimeError, OSError)):
        dataset.id.chunk_iter(note)
    if (table[:, 0] < 0).any():  # never written: these rows have the fill value and no location
        return None
    return Hdf5Chunks(chunk[0], *(np.ascontiguousarray(column) for column in table.T))


def sample_bytes(dataset: h5py.Dataset) -> int:
    """Return the bytes of one sample."""
    return int(math.prod(dataset.shape[1:]) * dataset.dtype.itemsize)
