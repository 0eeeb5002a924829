"""Where an HDF5 dataset's samples lie in its file: in one piece, or in chunks, plain or filtered."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from iobench.formats._placement import Chunked, Index, Placement, Strided


@dataclass(frozen=True)
class Chunks:
    """A dataset's chunks in the order of rows: byte offset, stored bytes and filter mask of each."""

    rows: int  # in each but the last
    offset: Index
    stored: Index
    mask: Index

    @property
    def first(self) -> Index:
        """The first row of each."""
        return np.arange(len(self.offset), dtype=np.int64) * self.rows


def placed(dataset: h5py.Dataset, path: Path) -> Placement | None:
    """Where the samples lie that are stored as they are in memory; None where they are not."""
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


def chunks_of(dataset: h5py.Dataset) -> Chunks | None:
    """The chunks of a dataset; None unless all are allocated and each holds whole samples."""
    shape, chunk = dataset.shape, dataset.chunks
    if chunk is None or chunk[1:] != shape[1:] or dataset.file.userblock_size:
        return None  # addresses are counted from the end of a user block, and not so by all versions
    count = -(-shape[0] // chunk[0])
    table = np.full((count, 3), -1, np.int64)

    def note(found: h5py.h5d.StoreInfo) -> None:
        number = found.chunk_offset[0] // chunk[0]
        if number < count:
            table[number] = found.byte_offset, found.size, found.filter_mask

    dataset.id.chunk_iter(note)
    if (table[:, 0] < 0).any():  # never written: rows of the fill value, which lie nowhere
        return None
    return Chunks(chunk[0], *(np.ascontiguousarray(column) for column in table.T))


def sample_bytes(dataset: h5py.Dataset) -> int:
    """The bytes of one sample."""
    return int(math.prod(dataset.shape[1:]) * dataset.dtype.itemsize)
