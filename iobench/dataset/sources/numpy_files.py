"""Sources of .npy and .npz files, which are read in pieces and never unpickled."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np

from iobench.base.errors import IobenchError, SourceError
from iobench.base.text import reason, shortened
from iobench.dataset.sources._regular_files import fill
from iobench.dataset.sources._source import BATCH_BYTES, FileSource
from iobench.formats import (
    DTYPE_HINT,
    Array,
    Batch,
    arrays_schema,
    raw_bytes,
    select_arrays,
    suggesting_selection,
)
from iobench.formats.npy_header import NpyHeader, read_header, wrong_size

# Errors of damaged archives; ValueError is for damaged headers and for locked or overlapping members.
DAMAGE = (
    ValueError,
    EOFError,
    RuntimeError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
)
PIECE_BYTES = 1 << 20  # unpacked at a time
MAX_DIRECTORY_BYTES = 4 << 20  # of an archive: tens of thousands of members, each of which takes memory
SMALL_COLUMN_BYTES = 4096  # below, reading a whole column costs no more than a part of it


class NpyFile(FileSource):
    """A .npy file; its array is the field `x`."""

    kind = "npy"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with self.opened() as file:
            try:
                self._header = read_header(file)
            except ValueError as error:
                raise _unreadable(path, reason(error)) from error
            self.schema = arrays_schema(path, {"x": (self._header.shape, self._header.dtype)})
        size = self._state.bytes - self._header.offset
        if size != self._header.data_bytes:
            raise wrong_size(path, self._header, size).converted(SourceError)

    def in_place(self) -> tuple[Path, str] | None:
        """Return the file, if format npy maps it."""
        mapped = self._header.dtype.isnative and not self._header.fortran
        return (self.path, "npy") if mapped else None

    def batches(self) -> Iterator[Batch]:
        """Yield rows, one piece of the file at a time."""
        rows, samples = self.schema.batch_rows(BATCH_BYTES), self.schema.samples
        read = self._columns if self._header.fortran else self._rows
        with self.opened() as file:
            for start in range(0, samples, rows):
                yield {"x": read(file, start, min(rows, samples - start))}

    def _rows(self, file: BinaryIO, start: int, count: int) -> Array:
        array = np.empty((count, *self._header.shape[1:]), self._header.dtype)
        fill(self.path, file, array, self._header.offset + start * self.schema.sample_bytes)
        return array

    def _columns(self, file: BinaryIO, start: int, count: int) -> Array:
        """Read rows in Fortran order, where each element of a sample is a column over all samples."""
        header, elements = self._header, self.schema.fields[0].elements
        column = header.shape[0] * header.dtype.itemsize
        flat = np.empty((elements, count), header.dtype)
        together = PIECE_BYTES // column if column <= SMALL_COLUMN_BYTES else 1
        for first in range(0, elements, together):
            offset = header.offset + first * column
            if together == 1:
                fill(self.path, file, flat[first], offset + start * header.dtype.itemsize)
            else:
                some = np.empty((min(together, elements - first), header.shape[0]), header.dtype)
                fill(self.path, file, some, offset)
                flat[first : first + together] = some[:, start : start + count]
        return np.ascontiguousarray(flat.reshape(*header.shape[:0:-1], count).transpose())


class NpzFile(FileSource):
    """A .npz archive; each array is a field. Members are read in parallel streams."""

    kind = "npz"

    def __init__(self, path: Path, chosen: tuple[str, ...]) -> None:
        super().__init__(path, chosen)
        with self.opened() as file:
            try:
                self._headers = _headers(path, zipfile.ZipFile(_Bounded(file)), chosen)
            except DAMAGE as error:
                if isinstance(error, IobenchError):
                    raise
                raise _unreadable(path, reason(error)) from error
            shapes = {name: (header.shape, header.dtype) for name, header in self._headers.items()}
            self.schema = arrays_schema(path, shapes, shapes)

    def batches(self) -> Iterator[Batch]:
        """Yield batches read from all members in parallel."""
        rows, samples = self.schema.batch_rows(BATCH_BYTES), self.schema.samples
        with self.opened() as file, ExitStack() as stack:
            try:
                archive = stack.enter_context(zipfile.ZipFile(_Bounded(file)))
                streams = {n: stack.enter_context(archive.open(f"{n}.npy")) for n in self._headers}
                for stream in streams.values():
                    read_header(stream)
                for start in range(0, samples, rows):
                    yield self._batch(streams, min(rows, samples - start))
                for name, stream in streams.items():
                    if stream.read(1):  # reading to the end also checks the checksum
                        raise EOFError(f"{name}.npy is longer than its header says")
            except DAMAGE as error:
                raise _unreadable(self.path, reason(error)) from error

    def _batch(self, streams: dict[str, IO[bytes]], count: int) -> Batch:
        batch = {}
        for field, (name, header) in zip(self.schema.fields, self._headers.items(), strict=True):
            batch[field.name] = np.empty((count, *header.shape[1:]), header.dtype)
            _unpack(streams[name], name, batch[field.name])
        return batch


def _headers(path: Path, archive: zipfile.ZipFile, chosen: tuple[str, ...]) -> dict[str, NpyHeader]:
    """Read the headers of the chosen members, by name without `.npy`."""
    members = archive.infolist()
    names = [member.filename.removesuffix(".npy") for member in members]
    available = list(dict.fromkeys(names))
    selected = set(select_arrays(path, available, chosen))
    headers: dict[str, NpyHeader] = {}
    for name, member in zip(names, members, strict=True):
        if name not in selected:
            continue
        try:
            if name in headers:
                raise _member_error(path, member, "name-clash", "appears twice")
            _check_member(path, member)
            headers[name] = _header(path, archive, member)
            _check_array(path, member, headers[name])
        except SourceError as error:
            raise suggesting_selection(error, path, available) from error.__cause__
    return headers


def _header(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NpyHeader:
    try:
        with archive.open(member) as stream:
            return read_header(stream)
    except DAMAGE as error:
        raise _member_error(path, member, "damaged", f"cannot be read: {reason(error)}") from error


def _check_member(path: Path, member: zipfile.ZipInfo) -> None:
    """Raise SourceError if a member of an archive is not an array that np.savez writes."""
    if not member.filename.endswith(".npy"):
        is_folder = member.filename.endswith("/")
        problem = "is a folder" if is_folder else "is not an .npy file"
        raise _member_error(path, member, "not-an-array", problem, "remove it from the archive")
    if ".." in member.filename.split("/"):
        raise _member_error(path, member, "invalid-name", "has a name that points out of the archive")
    if member.flag_bits & 1:
        raise _member_error(path, member, "encrypted", "is encrypted", "save it without a password")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        hint = "save it with np.savez or np.savez_compressed"
        raise _member_error(path, member, "unsupported-compression", "has an unsupported compression", hint)


def _check_array(path: Path, member: zipfile.ZipInfo, header: NpyHeader) -> None:
    """Raise SourceError if the array of a member cannot be read."""
    if header.dtype.hasobject:  # before its size, which is that of a pickle
        dtype = shortened(str(header.dtype))
        raise _member_error(path, member, "unsupported-dtype", f"has the dtype {dtype}", DTYPE_HINT)
    size = member.file_size - header.offset
    if size != header.data_bytes:
        raise wrong_size(path, header, size, f"{shortened(member.filename)!r}: ").converted(SourceError)
    if header.fortran:
        hint = "save np.ascontiguousarray of it"
        raise _member_error(path, member, "fortran-order", "is in Fortran order", hint)


def _member_error(
    path: Path, member: zipfile.ZipInfo, kind: str, problem: str, hint: str | None = None
) -> SourceError:
    return SourceError(f"{shortened(member.filename)!r} {problem}", kind=kind, path=path, hint=hint)


def _unpack(stream: IO[bytes], name: str, array: Array) -> None:
    view = raw_bytes(array)
    while view:
        piece = stream.read(min(len(view), PIECE_BYTES))
        if not piece:
            raise EOFError(f"{name}.npy is truncated")
        view[: len(piece)] = piece
        view = view[len(piece) :]


class _Bounded:
    """File for zipfile that limits the size of the archive's directory, which zipfile trusts."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        """Read `size` bytes, or all to the end; raises BadZipFile above the limit."""
        data = self._file.read(MAX_DIRECTORY_BYTES + 1 if size < 0 else min(size, MAX_DIRECTORY_BYTES + 1))
        if len(data) > MAX_DIRECTORY_BYTES:
            raise zipfile.BadZipFile("the directory is too long for an archive of arrays")
        return data

    def close(self) -> None:
        """Do nothing: the opener of the file closes it."""


def _unreadable(path: Path, cause: str) -> SourceError:
    return SourceError(f"cannot be read as {path.suffix}: {cause}", kind="damaged", path=path)
