"""Format hdf5: one dataset per field in `data.h5`, through h5py."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import h5py

from iobench.base.errors import CorruptArtifact, InvalidOption, corrupt, expecting
from iobench.base.files import regular
from iobench.base.finding import Finding
from iobench.base.options import option
from iobench.base.text import shortened
from iobench.base.units import bytes_text
from iobench.formats.array_format import ArrayFormat, StoredArray, stored_arrays
from iobench.formats.array_schema import (
    Groups,
    ShapeAndDtype,
    arrays_schema,
    native_dtype,
    select_arrays,
    split_selection,
    suggesting_selection,
)
from iobench.formats.folders import parts_not_read
from iobench.formats.format import Detectable
from iobench.formats.hdf5.datasets import DAMAGE as DATASET_DAMAGE
from iobench.formats.hdf5.datasets import (
    Described,
    Member,
    attribute_notes,
    data_elsewhere,
    described,
    open_file,
    own_object,
    without_samples,
)
from iobench.formats.hdf5.reader import Hdf5Reader
from iobench.formats.schema import Batch, Field, Schema, field_names

# HDF5's default chunk cache, and room for the compressed chunks that a random batch touches.
DEFAULT_CACHE_BYTES, LARGE_CACHE_BYTES = 1 << 20, 64 << 20
# Large chunks begin at a page, as direct reads require.
ALIGNED = {"alignment_threshold": 64 << 10, "alignment_interval": 4096}

FILE_NAME = "data.h5"
SIGNATURE = b"\x89HDF\r\n\x1a\n"

# What h5py raises for damaged metadata, a missing dataset, or a group in its place.
DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError)


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
        path, chosen = split_selection(path)
        file, datasets = _inspected(path)
        left = without_samples(datasets) - set(chosen)
        keys = [key for key in select_arrays(file, datasets, chosen) if key not in left]
        readable = _readable(datasets)
        for key in keys:
            if refusal := datasets[key].refused:
                named = refusal.changed(problem=f"{shortened(key)}: {refusal.problem}", path=file)
                raise suggesting_selection(named, file, readable, keys)
        shapes = {key: readable[key] for key in keys}
        schema = arrays_schema(file, shapes, datasets, others=readable)
        if path.is_dir() and {field.name for field in schema.fields} != set(keys):  # `write` keeps names
            raise CorruptArtifact(
                f"its {FILE_NAME} has groups", kind="groups", path=path, hint=f"give {FILE_NAME} itself"
            )
        return schema

    def others(self, path: Path) -> Sequence[Path]:
        """Return the files that links lead to, and the sources of virtual datasets."""
        path, chosen = split_selection(path)
        file, datasets = _inspected(path)
        used = [datasets[name] for name in select_arrays(file, datasets, chosen)]
        return sorted(
            {other for one in used if not one.refused for other in (one.file, *one.sources)} - {file}
        )

    def groups(self, path: Path) -> Groups:
        """Return the groups of a file that hold alike datasets."""
        if path.is_dir():
            return Groups()
        _, datasets = _inspected(path)
        arrays = _readable(datasets)
        return Groups.of(arrays, datasets.keys() - arrays.keys())

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Report compressed chunks of several samples, and attributes that say what the numbers stand for."""
        path, chosen = split_selection(path)
        _, datasets = _inspected(path)
        left = without_samples(datasets) - set(chosen)
        left_out = left.intersection(select_arrays(path, datasets, chosen))
        names = field_names(datasets)
        used = {field.name: datasets[names[field.name]] for field in schema.fields}
        notes = [
            _compressed(name, one.chunk_rows, one.chunk_bytes)
            for name, one in used.items()
            if one.packed and one.chunk_rows > 1
        ]
        notes += parts_not_read("dataset", left_out, " without an axis of samples")
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


def _compressed(field: str, samples: int, chunk_bytes: int) -> Finding:
    """Return the note about a field in compressed chunks of several samples."""
    message = (
        f"{field}: a sample read at random decompresses a chunk of {samples:,} ({bytes_text(chunk_bytes)})"
    )
    hint = "'iobench recommend' compares other formats"
    return Finding("compressed-chunks", message, hint, {"field": field, "samples": samples})


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
            raise CorruptArtifact(
                "one of the two files of HDF5's split driver",
                "split-files",
                file,
                found=f"{twin.name} beside it",
                hint=f"copy what h5py.File({name!r}, driver='split') holds into one file",
            )
    with expecting(file, "an HDF5 file", DATASET_DAMAGE, "unreadable"), open_file(file) as opened:
        below = "" if path.is_dir() else os.path.relpath(path, file).removeprefix(".")
        if not below or (group := own_object(opened, below)) is not None:
            return file, described(group if below else opened, file)
        every = described(opened, file)  # a link leads to the group
    return file, {n.removeprefix(f"{below}/"): one for n, one in every.items() if n.startswith(f"{below}/")}


def file_of(path: Path) -> Path:
    """Return the file of `FILE/GROUP`, or the path itself."""
    return next((one for one in path.parents if one.is_file()), path)


def _readable(datasets: Mapping[str, Described]) -> dict[str, ShapeAndDtype]:
    """Return shape and dtype of what can be read."""
    return {
        name: (one.shape, one.dtype)
        for name, one in datasets.items()
        if not one.refused and one.shape is not None and one.dtype is not None
    }


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
