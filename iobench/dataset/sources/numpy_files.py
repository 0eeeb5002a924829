"""The user's .npy and .npz files, read in pieces; nothing in them is ever unpickled."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from iobench.base.errors import (
    SourceError,
)
from iobench.base.text import reason, shortened
from iobench.dataset.sources._base import BATCH_BYTES, FileSource
from iobench.dataset.sources._files import fill
from iobench.dataset.sources._npy_header import Header, read_header
from iobench.dataset.sources._schema import NO_NUMBER, choose, how_to_choose, schema_of
from iobench.formats import Array, Batch, raw_bytes

# What a damaged archive raises; ValueError is for damaged headers and for locked or overlapping members.
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
SMALL_COLUMN_BYTES = 4096  # below, reading all of a column costs no more than asking for a part of it


class Npy(FileSource):
    """One array, which becomes the field `x`."""

    kind = "npy"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with self.opened() as file:
            try:
                self._header = read_header(file)
            except ValueError as error:
                raise _unreadable(path, error) from error
        self.schema = schema_of(path, {"x": (self._header.shape, self._header.dtype)})
        there = self._stamp.bytes - self._header.offset
        if there != self._header.data_bytes:
            raise _unreadable(path, f"its header promises {_counted(self._header, there)}")

    def batches(self) -> Iterator[Batch]:
        """Rows, a piece of the file at a time."""
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
        """The same out of Fortran order, where each element of a sample is a column over all samples."""
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


class Npz(FileSource):
    """An archive of arrays, each of which becomes a field; members are streamed side by side."""

    kind = "npz"

    def __init__(self, path: Path, chosen: tuple[str, ...] = ()) -> None:
        super().__init__(path, chosen)
        with self.opened() as file:
            try:
                self._headers = _headers(path, zipfile.ZipFile(_Bounded(file)), chosen)
            except DAMAGE as error:
                if isinstance(error, SourceError):
                    raise
                raise _unreadable(path, error) from error
        shapes = {name: (header.shape, header.dtype) for name, header in self._headers.items()}
        self.schema = schema_of(path, shapes, shapes)

    def batches(self) -> Iterator[Batch]:
        """Reads all members side by side, a batch of rows at a time."""
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
                    if stream.read(1):  # reading to the end is also what compares a member's checksum
                        raise EOFError(f"{name}.npy does not end where its header says")
            except DAMAGE as error:
                raise _unreadable(self.path, error) from error

    def _batch(self, streams: dict[str, IO[bytes]], count: int) -> Batch:
        batch = {}
        for field, (name, header) in zip(self.schema.fields, self._headers.items(), strict=True):
            batch[field.name] = np.empty((count, *header.shape[1:]), header.dtype)
            _unpack(streams[name], name, batch[field.name])
        return batch


def _headers(path: Path, archive: zipfile.ZipFile, chosen: tuple[str, ...]) -> dict[str, Header]:
    """The header of each chosen member by its name without `.npy`; SourceError where one cannot be taken."""
    members = archive.infolist()
    names = [member.filename.removesuffix(".npy") for member in members]
    available = list(dict.fromkeys(names))
    wanted = set(choose(path, available, chosen))
    found: dict[str, Header] = {}
    for name, member in zip(names, members, strict=True):
        if name not in wanted:
            continue
        what = f"--source {path}: {shortened(member.filename)!r}"
        why = "is there twice" if name in found else _refused(member)
        if not why:
            found[name] = _header(what, archive, member)
            why = _refused_array(found[name], member.file_size)
        if why:
            raise SourceError(f"{what} {why}{how_to_choose(path, available)}")
    return found


def _header(what: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Header:
    try:
        with archive.open(member) as stream:
            return read_header(stream)
    except DAMAGE as error:
        raise SourceError(f"{what} cannot be read: {reason(error)}") from error


def _refused(member: zipfile.ZipInfo) -> str | None:
    if member.filename.endswith("/"):
        return "is a folder; an .npz holds .npy files only"
    if not member.filename.endswith(".npy"):
        return "is no .npy file; remove it from the archive"
    if member.filename.startswith("/") or ".." in member.filename.split("/"):
        return "has a name that leads out of the archive"
    if member.flag_bits & 1:
        return "is encrypted; save it without a password"
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "is packed in a way that np.savez and np.savez_compressed do not use; save it with one of them"
    return None


def _refused_array(header: Header, size: int) -> str | None:
    if header.dtype.hasobject:  # before its size, which is that of a pickle
        return f"is {shortened(str(header.dtype))}, {NO_NUMBER}"
    if size - header.offset != header.data_bytes:
        return f"is damaged: its header promises {_counted(header, size - header.offset)}"
    if header.fortran:
        return "is in Fortran order; save np.ascontiguousarray of it"
    return None


def _counted(header: Header, found: int) -> str:
    ends = "it ends early" if found < header.data_bytes else "more than that array is there"
    return f"{header.data_bytes:,} bytes of data, {max(0, found):,} follow: {ends}"


def _unpack(stream: IO[bytes], name: str, array: Array) -> None:
    view = raw_bytes(array)
    while view:
        piece = stream.read(min(len(view), PIECE_BYTES))
        if not piece:
            raise EOFError(f"{name}.npy ends early")
        view[: len(piece)] = piece
        view = view[len(piece) :]


class _Bounded:
    """A file for zipfile, which trusts what an archive says of its own directory's size."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        """So many bytes, or all to the end; BadZipFile where they are too many."""
        data = self._file.read(MAX_DIRECTORY_BYTES + 1 if size < 0 else min(size, MAX_DIRECTORY_BYTES + 1))
        if len(data) > MAX_DIRECTORY_BYTES:
            raise zipfile.BadZipFile("its directory is longer than one of arrays can be")
        return data

    def close(self) -> None:
        """Nothing: whoever opened the file closes it."""


def _unreadable(path: Path, error: Exception | str) -> SourceError:
    said: Any = error if isinstance(error, str) else reason(error)
    return SourceError(f"--source {path}: cannot be read as {path.suffix}: {said}")
