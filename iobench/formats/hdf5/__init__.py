"""Format hdf5: one dataset per field in `data.h5`, through h5py."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np

from iobench.base.errors import CorruptArtifact, InvalidOption, corrupt, expecting
from iobench.base.files import regular
from iobench.base.finding import Finding
from iobench.base.options import option
from iobench.base.text import reason, shortened
from iobench.base.units import bytes_text
from iobench.formats._array_format import ArrayFormat, StoredArray, stored_arrays
from iobench.formats._arrays import (
    arrays_schema,
    native_dtype,
    select_arrays,
    split_selection,
    suggesting_selection,
)
from iobench.formats._format import Detectable
from iobench.formats._schema import Batch, Field, Schema, field_names
from iobench.formats.hdf5.datasets import DAMAGE as DATASET_DAMAGE
from iobench.formats.hdf5.datasets import described
from iobench.formats.hdf5.reader import Hdf5Reader

# HDF5's default chunk cache, and room for the compressed chunks that a random batch touches.
DEFAULT_CACHE_BYTES, LARGE_CACHE_BYTES = 1 << 20, 64 << 20
# Large chunks begin at a page, as direct reads require.
ALIGNED = {"alignment_threshold": 64 << 10, "alignment_interval": 4096}

FILE_NAME = "data.h5"
SIGNATURE = b"\x89HDF\r\n\x1a\n"  # at 0, or after a user block at 512, 1024, 2048, …

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
            raise InvalidOption(
                f"hdf5: compression={self.compression} needs chunks",
                kind="conflicting-options",
                found="chunk_bytes=0, which is contiguous",
            )

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

    def open_arrays(
        self, path: Path, schema: Schema, random: bool = False, others: Collection[str] = ()
    ) -> Hdf5Reader:
        """Check every dataset's shape and dtype, and return a reader."""
        source, names = path / FILE_NAME, {field.name: field.name for field in schema.fields}
        cache_bytes = self._cache_bytes(schema, random)
        if not path.is_dir():
            source, (names, cache_bytes) = path, _external_datasets(path, schema, random)
        with expecting(source, "an HDF5 file", OSError):
            # no lock: the artifact never changes, and locks fail on some network file systems
            file = h5py.File(regular(source), "r", rdcc_nbytes=cache_bytes, locking=False)
        try:
            datasets = {
                f.name: _dataset(file, source, names[f.name], f, schema.samples) for f in schema.fields
            }
        except BaseException:
            file.close()
            raise
        return Hdf5Reader(schema, source, file, datasets)

    def sniff(self, path: Path) -> bool:
        """Return True for a file with HDF5's signature, or a folder that `write` made."""
        file = path / FILE_NAME if path.is_dir() else path
        if not file.is_file():  # opening a pipe would block
            return False
        try:
            with open(file, "rb") as opened:
                return opened.read(len(SIGNATURE)) == SIGNATURE
        except OSError:
            return False

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of all datasets of a file, or of those that follow `::`.

        Nested datasets are named by their path. All share the leading axis. Links out of the file are
        not followed.
        """
        path, chosen = split_selection(path)
        file = path / FILE_NAME if path.is_dir() else path
        if path.is_dir() and not file.exists():
            raise CorruptArtifact(
                "not an HDF5 file", kind="unreadable", path=path, found=f"a folder without {FILE_NAME}"
            )
        datasets = _described(file)
        keys = select_arrays(file, datasets, chosen)
        for key in keys:
            if refusal := datasets[key].get("refused"):
                named = refusal.changed(problem=f"{shortened(key)}: {refusal.problem}", path=file)
                raise suggesting_selection(named, file, datasets)
        shapes = {key: (tuple(datasets[key]["shape"]), np.dtype(datasets[key]["dtype"])) for key in keys}
        schema = arrays_schema(file, shapes, datasets)
        if path.is_dir() and {field.name for field in schema.fields} != set(keys):  # `write` keeps names
            raise CorruptArtifact(
                f"its {FILE_NAME} has groups", kind="groups", path=path, hint=f"give {FILE_NAME} itself"
            )
        return schema

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Report compressed chunks of several samples, of which a random one costs all."""
        path, _ = split_selection(path)
        datasets = _described(path / FILE_NAME if path.is_dir() else path)
        names = field_names(datasets)
        used = ((field.name, datasets[names[field.name]]) for field in schema.fields)
        return [
            _compressed(name, dataset["chunk_rows"], dataset["chunk_bytes"])
            for name, dataset in used
            if dataset["packed"] and dataset["chunk_rows"] > 1
        ]

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


def _described(file: Path) -> dict[str, dict[str, Any]]:
    """Inspect a file that another program wrote; CorruptArtifact (``unreadable``) if it is not HDF5."""
    try:
        with h5py.File(regular(file), "r", locking=False) as opened:
            return described(opened)
    except DATASET_DAMAGE as error:
        raise CorruptArtifact(
            "not readable as HDF5", kind="unreadable", path=file, found=reason(error)
        ) from error


def _external_datasets(file: Path, schema: Schema, random: bool) -> tuple[dict[str, str], int]:
    """Return each field's dataset in a file that another program wrote, and the chunk cache's size."""
    described = _described(file)
    names = field_names(described)
    if missing := [field.name for field in schema.fields if field.name not in names]:
        raise corrupt(file, f"datasets for {', '.join(missing)}", shortened(", ".join(described)))
    chunks = [described[names[field.name]].get("chunk_bytes", 0) for field in schema.fields]
    packed = any(described[names[field.name]].get("packed") for field in schema.fields)
    in_order = max(DEFAULT_CACHE_BYTES, *chunks)
    return names, (LARGE_CACHE_BYTES if packed else 0) if random else in_order


def _dataset(file: h5py.File, path: Path, key: str, field: Field, samples: int) -> h5py.Dataset:
    expected = f"{key}: {field.dtype} {(samples, *field.shape)}"
    with expecting(path, expected, DAMAGE):
        link = file.get(key, getlink=True)
        if isinstance(link, h5py.HardLink):  # other links are not opened
            dataset = file[key]
            actual = f"{key}: {native_dtype(dataset.dtype)} {dataset.shape}"
        else:
            actual = f"a link to {link.path}"
    if actual != expected:
        raise corrupt(path, expected, actual)
    refuse_external_data(dataset, path)
    return dataset


def refuse_external_data(dataset: h5py.Dataset, path: Path) -> None:
    """Raise CorruptArtifact (``external-data``) if a dataset, opened from `path`, has data elsewhere.

    The data can be in raw files (HDF5's external storage), in the datasets that a virtual one is composed
    of, or in the file that a link led to.
    """
    other = None
    if dataset.external:
        other = "raw files: " + ", ".join(name for name, _, _ in dataset.external)
    elif dataset.is_virtual:
        sources = dict.fromkeys(f"{s.dset_name} of {s.file_name}" for s in dataset.virtual_sources())
        other = "other datasets: " + ", ".join(sources)
    elif not os.path.samefile(dataset.file.filename, path):
        other = f"another file: {dataset.file.filename}"
    if other:
        raise CorruptArtifact(
            f"dataset {dataset.name} has its data outside this file",
            kind="external-data",
            path=path,
            found=other[:200],
            hint="copy the data into this file",
        )
