"""The user's .npy and .npz files, read in pieces; nothing in them is ever unpickled."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np

from iobench.dataset.sources._base import BATCH_BYTES, FileSource, native_dtype, schema_of
from iobench.errors import SourceError
from iobench.formats import Batch

# What a damaged file raises: its header is Python source, its members may be packed or locked.
DAMAGE = (
    *(OSError, ValueError, EOFError, SyntaxError, TypeError, OverflowError, TokenError),
    *(RuntimeError, zipfile.BadZipFile, zlib.error, struct.error),
)


class Npy(FileSource):
    """One array, which becomes the field `x`."""

    kind = "npy"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        mapped = self._map()
        self.schema = schema_of(path, {"x": (mapped.shape, mapped.dtype)})

    def batches(self) -> Iterator[Batch]:
        """Copies out of a new map for each batch, so that resident memory does not grow."""
        rows = self.schema.batch_rows(BATCH_BYTES)
        for start in range(0, self.schema.samples, rows):
            piece = self._map()[start : start + rows]
            yield {"x": np.array(piece, native_dtype(piece.dtype), order="C")}

    def _map(self) -> np.ndarray[Any, Any]:
        try:
            return np.lib.format.open_memmap(self.path, mode="r")  # unlike np.load, it never unpickles
        except DAMAGE as error:
            raise _unreadable(self.path, error) from error


class Npz(FileSource):
    """An archive of arrays, each of which becomes a field; compressed members are streamed."""

    kind = "npz"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            with zipfile.ZipFile(path) as archive:
                members = [m for m in archive.namelist() if m.endswith(".npy")]
                headers = {m: _header(archive, m) for m in members}
        except DAMAGE as error:
            raise _unreadable(path, error) from error
        for member, (_, fortran, _) in headers.items():
            if fortran:
                raise SourceError(
                    f"--source {path}: {member} is in Fortran order; save np.ascontiguousarray of it"
                )
        shapes = {m.removesuffix(".npy"): (shape, dtype) for m, (shape, _, dtype) in headers.items()}
        self.schema = schema_of(path, shapes)
        self._members = dict(zip(headers, self.schema.fields, strict=True))
        self._dtypes = {m: dtype for m, (_, _, dtype) in headers.items()}

    def batches(self) -> Iterator[Batch]:
        """Reads all members side by side, a batch of rows at a time."""
        rows = self.schema.batch_rows(BATCH_BYTES)
        try:
            with zipfile.ZipFile(self.path) as archive, ExitStack() as stack:
                streams = {m: stack.enter_context(archive.open(m)) for m in self._members}
                for stream in streams.values():
                    _read_header(stream)
                for start in range(0, self.schema.samples, rows):
                    count = min(rows, self.schema.samples - start)
                    yield {
                        field.name: self._rows(streams[member], member, count)
                        for member, field in self._members.items()
                    }
        except DAMAGE as error:
            raise _unreadable(self.path, error) from error

    def _rows(self, stream: IO[bytes], member: str, count: int) -> np.ndarray[Any, Any]:
        field, dtype = self._members[member], self._dtypes[member]
        wanted = count * field.sample_bytes
        data = bytearray(stream.read(wanted))
        if len(data) != wanted:
            raise EOFError(f"{member} ends early")
        array = np.frombuffer(data, dtype).reshape(count, *field.shape)
        return array.astype(native_dtype(dtype), copy=False)


def _header(archive: zipfile.ZipFile, member: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    with archive.open(member) as stream:
        return _read_header(stream)


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(stream)


def _unreadable(path: Path, error: Exception) -> SourceError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return SourceError(f"--source {path}: cannot be read as {path.suffix}: {reason}")
