"""Reader of HDF5 through h5py, which also locates rows in the file for direct reads."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from iobench.base.errors import CorruptArtifact, corrupt, damage, expecting
from iobench.formats.array_schema import native_dtype
from iobench.formats.hdf5.datasets import Member, Selection, is_virtual, sources_of
from iobench.formats.placement import Blocks, Chunked, Index, Placement, Strided, end_to_end
from iobench.formats.reader import Convert, Reader, Rows, identity
from iobench.formats.schema import Array, Batch, Schema, raw_bytes


class Hdf5Reader(Reader):
    """Reads through h5py, which admits one thread at a time under its own lock."""

    def __init__(
        self, schema: Schema, path: Path, files: ExitStack, datasets: dict[str, h5py.Dataset]
    ) -> None:
        super().__init__(schema)
        self._path, self._files, self._datasets = path, files, datasets
        self._native = all(dataset.dtype.isnative for dataset in datasets.values())

    def placement(self) -> dict[str, Placement]:
        """Return the location of each field that is contiguous, or in unfiltered chunks of whole samples."""
        if not self._datasets:
            raise ValueError("this reader is closed")
        places = {name: placed(dataset, _file_of(dataset)) for name, dataset in self._native_ones()}
        return {name: place for name, place in places.items() if place is not None}

    def blocks(self) -> list[Blocks]:
        """Return the chunks of each field that is compressed by deflate, shuffled or not."""
        if not self._datasets:
            raise ValueError("this reader is closed")
        tables = [encoded(dataset, name, _file_of(dataset)) for name, dataset in self._native_ones()]
        return [blocks for blocks in tables if blocks is not None]

    def _native_ones(self) -> list[tuple[str, h5py.Dataset]]:
        """Return the datasets in this machine's byte order; external files may hold others."""
        return [(name, dataset) for name, dataset in self._datasets.items() if dataset.dtype.isnative]

    def batch(self, rows: Rows | Sequence[int]) -> Batch:
        """Return the rows in new arrays; a slice uses h5py's fast path."""
        checked, _ = self._checked(rows)
        if not isinstance(checked, slice) or not self._datasets or not self._native:
            return super().batch(checked)
        with expecting(self._path, "readable chunks", OSError):
            return {name: dataset[checked] for name, dataset in self._datasets.items()}

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
            raise damage(error, self._path, "readable samples") from error

    def close(self) -> None:
        """Close the files."""
        self._datasets = {}
        self._files.close()

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
        with expecting(self._path, "readable chunks", OSError):
            for name, target in out.items():
                gather(self._datasets[name], target)


def _file_of(dataset: h5py.Dataset | Member) -> Path:
    whole: h5py.Dataset = dataset.whole if isinstance(dataset, Member) else dataset
    return Path(whole.file.filename)


def _read_slab(dataset: h5py.Dataset, start: int, target: Array) -> None:
    """Read consecutive rows from `start` into `target`.

    Uses the low-level call, because `read_direct` spends longer on its selection than on 128 KiB.
    """
    if isinstance(dataset, Member):
        target[...] = dataset[start : start + len(target)]
        return
    selected = dataset.id.get_space()
    selected.select_hyperslab((start,) + (0,) * (target.ndim - 1), target.shape)
    dataset.id.read(h5py.h5s.create_simple(target.shape), selected, target)


def _gather_chunked(
    dataset: h5py.Dataset, unique: npt.NDArray[np.int64], inverse: npt.NDArray[np.int64], target: Array
) -> None:
    """Read row by row in file order, so that each chunk is decoded once while it is cached.

    A list selection over chunks of few samples is up to 50 times slower than this loop.
    """
    order = np.argsort(inverse, kind="stable")
    for slot, row in zip(order.tolist(), unique[inverse[order]].tolist(), strict=True):
        target[slot] = dataset[row]


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


def placed(dataset: h5py.Dataset | Member, path: Path) -> Placement | None:
    """Return the location of samples that are stored as in memory; None if they are not."""
    if isinstance(dataset, Member):
        return _member_placed(dataset, path)
    if is_virtual(dataset):
        return _virtual_placed(dataset, path)
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


def _member_placed(member: Member, path: Path) -> Placement | None:
    """Return the location of samples, a stride of the whole type apart; None if not in one piece each."""
    kind, place = member.whole.id.get_type(), placed(member.whole, path)
    stored = kind.get_member_type(kind.get_member_index(member.name.encode())).get_size()
    if len(member.whole.shape) > 1 or stored != member.whole.dtype[member.name].itemsize:
        return None
    begin = member.whole.dtype.fields[member.name][1]
    return replace(place, offset=place.offset + begin) if isinstance(place, Strided | Chunked) else None


def _virtual_placed(dataset: h5py.Dataset, path: Path) -> Placement | None:
    """Return the location of the rows of a virtual dataset; None unless it is rows of sources, end to end."""
    places, lengths = list[Placement](), list[int]()
    for source in sorted(sources_of(dataset, path), key=lambda one: one.target[0]):
        rows = _rows(source.target, dataset.shape)
        with source.opened(path, dataset) as stored:
            if stored is None or (stored.dtype, stored.shape[1:]) != (dataset.dtype, dataset.shape[1:]):
                return None
            own = _rows(source.own, stored.shape) if source.own else range(len(stored))
            if rows is None or own is None or rows.start != sum(lengths) or len(own) != len(rows):
                return None
            place = None if is_virtual(stored) else placed(stored, source.file)
        if isinstance(place, Strided):
            place = replace(place, offset=place.offset + own.start * place.stride)
        elif own.start or not isinstance(place, Chunked):
            return None
        places.append(place)
        lengths.append(len(rows))
    return end_to_end(places, np.array(lengths)) if places else None


def _rows(selection: Selection, shape: tuple[int, ...]) -> range | None:
    """Return the rows of an array of this shape that a selection holds as wholes; None for any other."""
    start, stride, count, block = selection
    rows = range(start[0], start[0] + (count[0] - 1) * stride[0] + block[0])
    return rows if len(rows) * math.prod(shape[1:]) == math.prod(count) * math.prod(block) else None


def encoded(dataset: h5py.Dataset | Member, name: str, path: Path) -> Blocks | None:
    """Return the chunks of a dataset as blocks; None unless its filters are deflate and shuffle.

    No library offers HDF5's other filters, lzf among them, on their own.
    """
    if isinstance(dataset, Member):
        return None
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
