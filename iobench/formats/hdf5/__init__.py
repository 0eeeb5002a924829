"""Format hdf5: one dataset per field in `data.h5`, through h5py, which also locates rows for direct reads."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
import numpy.typing as npt

from iobench.base.errors import CorruptArtifact, InvalidOption, corrupt, damage, expecting
from iobench.base.files import regular
from iobench.base.finding import Finding
from iobench.base.options import option
from iobench.base.text import shortened
from iobench.base.units import bytes_text
from iobench.formats.array_format import ArrayFormat, StoredArray, stored_arrays
from iobench.formats.array_schema import (
    Groups,
    native_dtype,
    select_arrays,
    selected_schema,
    split_selection,
    without_samples,
)
from iobench.formats.folders import MATLAB, attribute_notes, attributes_not_read, file_of, parts_not_read
from iobench.formats.format import Detectable
from iobench.formats.hdf5.datasets import (
    DAMAGE,
    Described,
    Member,
    Selection,
    attributes_in,
    data_elsewhere,
    described,
    is_virtual,
    open_file,
    own_object,
    raw_parts,
    sources_of,
)
from iobench.formats.placement import Blocks, Chunked, Index, Placement, Strided, end_to_end
from iobench.formats.reader import Convert, Reader, Rows, identity, unclosed
from iobench.formats.schema import Array, Batch, Field, Schema, field_names, raw_bytes

# HDF5's default chunk cache, and room for the compressed chunks that a random batch touches.
DEFAULT_CACHE_BYTES, LARGE_CACHE_BYTES = 1 << 20, 64 << 20
# Large chunks begin at a page, as direct reads require.
ALIGNED = {"alignment_threshold": 64 << 10, "alignment_interval": 4096}

INTERNAL = ("#refs#/", "#subsystem#/")  # where MATLAB 7.3 keeps what its cells and objects refer to
FILE_NAME = "data.h5"
SIGNATURE = b"\x89HDF\r\n\x1a\n"


@dataclass(frozen=True)
class Hdf5(ArrayFormat, Detectable):
    """One file, `data.h5`, with one dataset per field, chunked along the samples or contiguous."""

    name: ClassVar[str] = "hdf5"
    summary: ClassVar[str] = "one HDF5 file, one dataset per field"
    library: ClassVar[str] = "h5py"
    selectable: ClassVar[bool] = True

    chunk_bytes: int = option(1 << 20, "bytes per chunk of whole samples; 0 is contiguous", minimum=0)
    compression: str | None = option(None, "filter on each chunk", choices=(None, "lzf", "gzip"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compression and not self.chunk_bytes:
            problem = f"hdf5: compression={self.compression} needs chunks"
            raise InvalidOption(problem, "conflicting-options", found="chunk_bytes=0, which is contiguous")

    def write_arrays(self, path: Path, arrays: Collection[StoredArray], batches: Iterable[Batch]) -> None:
        """Write `data.h5` into reserved space, because HDF5 crashes when a full disk refuses a write."""
        path.mkdir()
        with h5py.File(path / "data.h5", "w", rdcc_nbytes=LARGE_CACHE_BYTES, **ALIGNED) as file:
            try:
                os.posix_fallocate(file.id.get_vfd_handle(), 0, self._bound(arrays))
                self._fill(file, arrays, batches)
                file.flush()
                size = file.id.get_filesize()
            except BaseException:
                _discard(file)
                raise
        os.truncate(path / "data.h5", size)

    def _fill(self, file: h5py.File, arrays: Collection[StoredArray], batches: Iterable[Batch]) -> None:
        datasets = {  # stay open, because closing one writes its cached chunks
            array.name: file.create_dataset(
                array.name,
                array.shape,
                array.row.dtype,
                chunks=self._chunks(array),
                compression=self.compression,
            )
            for array in arrays
        }
        starts = dict.fromkeys(datasets, 0)
        for batch in batches:
            for name, rows in batch.items():
                stop = starts[name] + len(rows)
                datasets[name][starts[name] : stop] = rows
                starts[name] = stop

    def open_arrays(self, path: Path, schema: Schema, random: bool = False) -> Hdf5Reader:
        """Check every dataset's shape and dtype, and return a reader."""
        if path.is_dir():
            source, cache_bytes = path / FILE_NAME, self._cache_bytes(schema, random)
            places = {field.name: Described(source, field.name) for field in schema.fields}
        else:
            source, places = _described(path, schema)
            cache_bytes = max(DEFAULT_CACHE_BYTES, *(one.chunk_bytes for one in places.values()))
            if random:
                cache_bytes = LARGE_CACHE_BYTES if any(one.packed for one in places.values()) else 0
        datasets, files = dict[str, Any](), dict[Path, h5py.File]()
        with ExitStack() as stack:
            for field in schema.fields:
                one = places[field.name]
                if one.file not in files:
                    with expecting(one.file, "an HDF5 file", OSError):
                        files[one.file] = stack.enter_context(open_file(one.file, rdcc_nbytes=cache_bytes))
                datasets[field.name] = _dataset(files[one.file], one, field, schema.samples)
            return Hdf5Reader(schema, source, stack.pop_all(), datasets)

    def sniff(self, path: Path) -> bool:
        """Return True for a file with HDF5's signature, or a folder that `write` made."""
        try:
            with open(regular(path / FILE_NAME if path.is_dir() else path), "rb") as opened:
                size = os.fstat(opened.fileno()).st_size
                places = (0, *(1 << power for power in range(9, size.bit_length())))  # after a user block
                return any(os.pread(opened.fileno(), len(SIGNATURE), at) == SIGNATURE for at in places)
        except OSError:
            return False

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of all datasets of a file, or of those that follow `::`.

        Nested datasets are named by their path. All share the leading axis; what has none is left out. Links
        to files below the file's folder are followed.
        """
        path, file, datasets, taken, left = _selected(path)
        keys = [key for key in taken if key not in left]
        try:
            own = {
                key: one.typed for key, one in datasets.items() if key in keys or not key.startswith(INTERNAL)
            }
            schema = selected_schema(file, own, keys)
        except CorruptArtifact as error:
            if error.kind != "unequal-lengths" or not any(MATLAB in datasets[key].attributes for key in keys):
                raise
            arrays = f"**{{key: f[key][()].T for key in {keys}}}"
            code = f'f = h5py.File("{file.name}"); numpy.savez("{file.stem}.npz", {arrays})'
            hint = f"MATLAB 7.3 stores the last axis first: save it with '-v7', or convert it: {code}"
            raise error.changed(hint=hint) from error
        if path.is_dir() and {field.name for field in schema.fields} != set(keys):  # `write` keeps names
            raise CorruptArtifact(
                f"its {FILE_NAME} has groups", kind="groups", path=path, hint=f"give {FILE_NAME} itself"
            )
        return schema

    def others(self, path: Path) -> Sequence[Path]:
        """Return the files that links lead to, the sources of virtual datasets, and raw files."""
        _, file, datasets, taken, _ = _selected(path)
        used = [datasets[name] for name in taken if not datasets[name].refused]
        return sorted({other for one in used for other in (one.file, *one.sources)} - {file})

    def groups(self, path: Path) -> Groups:
        """Return the groups of a file that hold alike datasets."""
        if path.is_dir():
            return Groups()
        _, datasets = _inspected(path)
        typed = {key: one.typed for key, one in datasets.items()}
        arrays = {key: one for key, one in typed.items() if not isinstance(one, CorruptArtifact)}
        return Groups.of(arrays, datasets.keys() - arrays.keys())

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Report compressed chunks of several samples, and attributes that say what the numbers stand for."""
        path, file, datasets, _, left = _selected(path)
        names = field_names(datasets)
        used = {field.name: datasets[names[field.name]] for field in schema.fields}
        notes, hint = list[Finding](), "'iobench recommend' compares other formats"
        for name, one in used.items():
            if one.packed and one.chunk_rows > 1:
                chunk = f"a chunk of {one.chunk_rows:,} ({bytes_text(one.chunk_bytes)})"
                message = f"{name}: a sample read at random decompresses {chunk}"
                values: dict[str, Any] = {"field": name, "samples": one.chunk_rows}
                notes.append(Finding("compressed-chunks", message, hint, values))
        notes += parts_not_read("dataset", left, " without an axis of samples")
        notes += attributes_not_read(attributes_in(file if path.is_dir() else path))
        return notes + attribute_notes({name: one.attributes for name, one in used.items()})

    def size_bound(self, schema: Schema) -> int:
        """Return logical bytes, a partly filled last chunk per field, and the chunk index."""
        return self._bound(stored_arrays(schema))

    def _bound(self, arrays: Collection[StoredArray]) -> int:
        logical = sum(array.nbytes for array in arrays)
        chunks = logical // max(self.chunk_bytes, 1) + 1 if self.chunk_bytes else 0
        incompressible = logical // 50 if self.compression else 0
        partial = self.chunk_bytes * len(arrays)
        chunk = 256 + ALIGNED["alignment_interval"]
        return logical + (1 << 20) + chunk * chunks + incompressible + partial

    def _cache_bytes(self, schema: Schema, random: bool) -> int:
        """Return the chunk cache's size for the order in which rows will be read.

        In sequential order one chunk is enough, and reading each chunk into the same memory is three
        times as fast as into 64 MiB. In random order, HDF5 reads only the row of a plain chunk that does
        not fit the cache, which is 11 times as fast; a compressed chunk must be decoded whole.
        """
        if random:
            return LARGE_CACHE_BYTES if self.compression else 0
        largest = max(field.sample_bytes for field in schema.fields)
        return max(DEFAULT_CACHE_BYTES, self.chunk_bytes, largest)

    def _chunks(self, array: StoredArray) -> tuple[int, ...] | None:
        if not self.chunk_bytes:
            return None
        return (min(array.length, max(1, self.chunk_bytes // array.row.sample_bytes)), *array.row.shape)


def _discard(file: h5py.File) -> None:
    """Redirect to memory what HDF5 still writes when it closes."""
    memory = os.memfd_create("discarded")
    os.dup2(memory, file.id.get_vfd_handle())
    os.close(memory)


def _inspected(path: Path) -> tuple[Path, dict[str, Described]]:
    """Return the file at a path, and what it holds; of `FILE/GROUP`, what the group holds.

    CorruptArtifact (``unreadable``) if it is not HDF5, or ``split-files``.
    """
    file = path / FILE_NAME if path.is_dir() else file_of(path)
    if path.is_dir() and not file.exists():
        problem, found = "not an HDF5 file", f"a folder without {FILE_NAME}"
        raise CorruptArtifact(problem, "unreadable", path, found=found)
    if file.stem.endswith(("-m", "-r")):
        name = file.stem[:-2]
        twin = file.with_name(f"{name}{'-r' if file.stem.endswith('-m') else '-m'}{file.suffix}")
        if twin.exists():
            problem = "one of the two files of HDF5's split driver"
            hint = f"copy what h5py.File({name!r}, driver='split') holds into one file"
            raise CorruptArtifact(problem, "split-files", file, found=f"{twin.name} beside it", hint=hint)
    with expecting(file, "an HDF5 file", DAMAGE, "unreadable"), open_file(file) as opened:
        below = "" if path.is_dir() else os.path.relpath(path, file).removeprefix(".")
        if not below or (group := own_object(opened, below)) is not None:
            return file, described(group if below else opened, file)
        every = described(opened, file)  # a link leads to the group
    return file, {n.removeprefix(f"{below}/"): one for n, one in every.items() if n.startswith(f"{below}/")}


def _selected(path: Path) -> tuple[Path, Path, dict[str, Described], list[str], set[str]]:
    """Return a path without its selection, its file, what that holds, what is selected, and the rest of it.

    That rest has no samples, and its names were not given.
    """
    path, chosen = split_selection(path)
    file, datasets = _inspected(path)
    taken = select_arrays(file, datasets, chosen)
    shapes = {name: one.shape for name, one in datasets.items() if one.shape is not None}
    left = without_samples(shapes, {name for name, one in datasets.items() if one.refused})
    left |= {name for name in datasets if name.startswith(INTERNAL)}
    return path, file, datasets, taken, left.intersection(taken) - set(chosen)


def _described(path: Path, schema: Schema) -> tuple[Path, dict[str, Described]]:
    """Return the file of another program, and where it has each field."""
    file, datasets = _inspected(path)
    names = field_names(datasets)
    if missing := [field.name for field in schema.fields if field.name not in names]:
        raise corrupt(path, f"datasets for {', '.join(missing)}", shortened(", ".join(datasets)))
    return file, {field.name: datasets[names[field.name]] for field in schema.fields}


def _dataset(file: h5py.File, place: Described, field: Field, samples: int) -> h5py.Dataset | Member:
    if place.refused:
        raise place.refused.changed(path=place.file)
    expected = f"{place.key}: {field.dtype} {(samples, *field.shape)}"
    with expecting(place.file, expected, DAMAGE):
        whole, actual = own_object(file, place.key), "a link"
        if whole is None and hasattr(link := file.get(place.key, getlink=True), "path"):
            actual = f"a link to {link.path}"
        elif whole is not None:
            dataset = Member(whole, place.member) if place.member else whole
            actual = f"{place.key}: {native_dtype(dataset.dtype)} {dataset.shape}"
    if actual != expected:
        raise corrupt(place.file, expected, actual)
    if not place.sources and (other := data_elsewhere(whole)):
        raise corrupt(place.file, f"{place.key} in this file", other, kind="external-data")
    return dataset


class Hdf5Reader(Reader):
    """Reads through h5py, which admits one thread at a time under its own lock."""

    def __init__(
        self, schema: Schema, path: Path, files: ExitStack, datasets: dict[str, h5py.Dataset]
    ) -> None:
        super().__init__(schema)
        self._path, self._files = path, files
        self._datasets: dict[str, h5py.Dataset] | None = datasets
        self._native = all(dataset.dtype.isnative for dataset in datasets.values())

    def placement(self) -> dict[str, Placement]:
        """Return the location of each field that is contiguous, or in unfiltered chunks of whole samples."""
        places = {name: placed(dataset) for name, dataset in self._native_ones()}
        return {name: place for name, place in places.items() if place is not None}

    def blocks(self) -> list[Blocks]:
        """Return the chunks of each field that is compressed by deflate, shuffled or not."""
        tables = [encoded(dataset, name) for name, dataset in self._native_ones()]
        return [blocks for blocks in tables if blocks is not None]

    def _native_ones(self) -> list[tuple[str, h5py.Dataset]]:
        """Return the datasets in this machine's byte order; external files may hold others."""
        datasets = unclosed(self._datasets)
        return [(name, dataset) for name, dataset in datasets.items() if dataset.dtype.isnative]

    def batch(self, rows: Rows | Sequence[int]) -> Batch:
        """Return the rows in new arrays; a slice uses h5py's fast path."""
        checked, _ = self._checked(rows)
        if not isinstance(checked, slice) or not self._datasets or not self._native:
            return super().batch(checked)
        with expecting(self._path, "readable chunks", OSError):
            return {name: dataset[checked] for name, dataset in self._datasets.items()}

    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """Return one sample in new arrays."""
        datasets, sample = unclosed(self._datasets), {}
        try:
            for name, dataset in datasets.items():
                value = dataset[row]  # what h5py returns of a scalar is no array
                sample[name] = convert(np.asarray(value, None if self._native else native_dtype(value.dtype)))
            return sample
        except OSError as error:
            raise damage(error, self._path, "readable samples") from error

    def close(self) -> None:
        """Close the files."""
        self._datasets = None
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
                return
            # row by row in file order, so that each chunk is decoded once while it is cached: a list
            # selection over chunks of few samples is up to 50 times slower
            order = np.argsort(inverse, kind="stable")
            for slot, row in zip(order.tolist(), unique[inverse[order]].tolist(), strict=True):
                target[slot] = dataset[row]

        self._read(gather, out)

    def _read(self, gather: Any, out: Mapping[str, Array]) -> None:
        datasets = unclosed(self._datasets)
        with expecting(self._path, "readable chunks", OSError):
            for name, target in out.items():
                gather(datasets[name], target)


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


def placed(dataset: h5py.Dataset | Member) -> Placement | None:
    """Return the location of samples that are stored as in memory; None if they are not."""
    if isinstance(dataset, Member):
        return _member_placed(dataset)
    if is_virtual(dataset):
        return _virtual_placed(dataset)
    if not _stored_alike(dataset):
        return None
    path, width = Path(dataset.file.filename), sample_bytes(dataset)
    if raw := raw_parts(dataset, path):
        lengths = np.array([size // width for _, _, size in raw])
        whole = int(lengths.sum()) == len(dataset)  # no sample is in two files
        return end_to_end([Strided((file,), at, width) for file, at, _ in raw], lengths) if whole else None
    offset = dataset.id.get_offset()
    if offset is not None:
        return Strided((path,), int(offset), width)
    if dataset.id.get_create_plist().get_nfilters():
        return None
    if (chunks := chunks_of(dataset)) is None:
        return None
    first, at, stored, _ = chunks
    whole = (stored == dataset.chunks[0] * width).all()
    return Chunked((path,), first, np.zeros_like(at), at, width) if whole else None


def _member_placed(member: Member) -> Placement | None:
    """Return the location of samples, a stride of the whole type apart; None if not in one piece each."""
    kind, place = member.whole.id.get_type(), placed(member.whole)
    stored = kind.get_member_type(kind.get_member_index(member.name.encode())).get_size()
    if len(member.whole.shape) > 1 or stored != member.whole.dtype[member.name].itemsize:
        return None
    begin = member.whole.dtype.fields[member.name][1]
    return replace(place, offset=place.offset + begin) if isinstance(place, Strided | Chunked) else None


def _virtual_placed(dataset: h5py.Dataset) -> Placement | None:
    """Return the location of the rows of a virtual dataset; None unless it is rows of sources, end to end."""
    path, places, lengths = Path(dataset.file.filename), list[Placement](), list[int]()
    for source in sorted(sources_of(dataset, path), key=lambda one: one.target[0]):
        rows = _rows(source.target, dataset.shape)
        with source.opened(path, dataset) as stored:
            if stored is None or (stored.dtype, stored.shape[1:]) != (dataset.dtype, dataset.shape[1:]):
                return None
            own = _rows(source.own, stored.shape) if source.own else range(len(stored))
            if rows is None or own is None or rows.start != sum(lengths) or len(own) != len(rows):
                return None
            place = None if is_virtual(stored) else placed(stored)
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


def encoded(dataset: h5py.Dataset | Member, name: str) -> Blocks | None:
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
    if (chunks := chunks_of(dataset)) is None:
        return None
    first, offset, stored, mask = chunks
    path, item = Path(dataset.file.filename), int(dataset.dtype.itemsize)
    decode = ChunkDecoder(path, name, dataset.chunks[0] * sample_bytes(dataset), item, filters, mask)
    return Blocks((name,), (path,), first, np.zeros_like(offset), offset, stored, decode)


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


def chunks_of(dataset: h5py.Dataset) -> tuple[Index, Index, Index, Index] | None:
    """Return first row, byte offset, stored bytes and filter mask of each chunk in row order.

    None unless all are allocated and hold whole samples; the last may hold fewer than the others.

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
    offset, stored, mask = (np.ascontiguousarray(column) for column in table.T)
    return np.arange(count, dtype=np.int64) * chunk[0], offset, stored, mask


def sample_bytes(dataset: h5py.Dataset) -> int:
    """Return the bytes of one sample."""
    return int(math.prod(dataset.shape[1:]) * dataset.dtype.itemsize)
