"""File of an index: named arrays, each from a page boundary on, behind a header in the first page.

A file is written piece by piece under a temporary name and renamed. It is mapped, so that workers share it; a
page that cannot be read raises OSError in the code that uses the index.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from iobench.formats import Array
from iobench.host.bus_errors import MapGuard
from iobench.host.maps import GuardedMap

MAGIC = b"iobench index 2\n"
COPY_BYTES = 1 << 20

_verified: set[tuple[str, int, int, int]] = set()  # files with a correct checksum


class _CachedArray(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An array in the file and its offset."""

    name: str
    dtype: str
    samples: int
    offset: int


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Header in the first page of a file."""

    built_from: str  # identity of what the arrays describe
    arrays: tuple[_CachedArray, ...]  # the arrays that follow
    checksum: int  # CRC-32 of all arrays and of the fields above


class IndexFile:
    """Arrays that grow piece by piece in a temporary file; `finish` gives it its name.

    The first array is written where it stays, others into files of their own until its length is known.
    """

    def __init__(self, folder: Path, prefix: str) -> None:
        self._prefix = folder / f"{prefix}.{secrets.token_hex(4)}"
        self._arrays: dict[str, tuple[np.dtype[Any], BinaryIO]] = {}
        self._checksum = 0  # of the first array

    def append(self, piece: dict[str, Array]) -> bool:
        """Append to each array; returns whether that succeeded."""
        try:
            for name, array in piece.items():
                data = np.ascontiguousarray(array).data
                self._file(name, array.dtype).write(data)
                if name == next(iter(self._arrays)):
                    self._checksum = zlib.crc32(data, self._checksum)
        except OSError:  # a read-only folder or a full disk
            return False
        return True

    def finish(self, path: Path, built_from: str) -> bool:
        """Complete the file under its name; returns whether that succeeded."""
        try:
            path.parent.mkdir(exist_ok=True)
            self._complete(built_from)
            os.replace(self._name(0), path)
        except (OSError, ValueError):
            return False
        return True

    def close(self) -> None:
        """Remove the temporary files that are left."""
        for number, (_, file) in enumerate(self._arrays.values()):
            with contextlib.suppress(OSError):
                file.close()
            with contextlib.suppress(OSError):
                self._name(number).unlink(missing_ok=True)

    def _name(self, number: int) -> Path:
        return Path(f"{self._prefix}-{number}.tmp")

    def _file(self, name: str, dtype: np.dtype[Any]) -> BinaryIO:
        """Return the file of an array."""
        if name not in self._arrays:
            path = self._name(len(self._arrays))
            path.parent.mkdir(exist_ok=True)
            file = open(path, "w+b")  # noqa: SIM115 - closed by `close`
            self._arrays[name] = dtype, file
            file.seek(0 if len(self._arrays) > 1 else mmap.PAGESIZE)
        return self._arrays[name][1]

    def _complete(self, built_from: str) -> None:
        """Put all arrays and the header into the first file; ValueError for a header above a page."""
        entries: list[_CachedArray] = []
        first, checksum = next(iter(self._arrays.values()))[1], self._checksum
        for name, (dtype, file) in self._arrays.items():
            size = file.tell() - (mmap.PAGESIZE if file is first else 0)
            start = mmap.PAGESIZE
            if file is not first:
                start = -(-first.tell() // mmap.PAGESIZE) * mmap.PAGESIZE
                checksum = _copy(file, first, start, checksum)
            entries.append(_CachedArray(name, dtype.str, size // dtype.itemsize, start))
        arrays = tuple(entries)
        header = MAGIC + msgspec.json.encode(_Header(built_from, arrays, _crc(built_from, arrays, checksum)))
        if len(header) >= mmap.PAGESIZE:
            raise ValueError("too many arrays")
        first.truncate(-(-first.tell() // mmap.PAGESIZE) * mmap.PAGESIZE)
        first.seek(0)
        first.write(header.ljust(mmap.PAGESIZE))
        first.flush()
        os.fsync(first.fileno())


def _copy(source: BinaryIO, target: BinaryIO, start: int, checksum: int) -> int:
    """Copy a file to an offset of another one and return the checksum continued over it."""
    source.seek(0)
    target.seek(start)
    while data := source.read(COPY_BYTES):
        target.write(data)
        checksum = zlib.crc32(data, checksum)
    return checksum


def _crc(built_from: str, arrays: tuple[_CachedArray, ...], content: int) -> int:
    return zlib.crc32(msgspec.json.encode((built_from, arrays)), content)


def read(path: Path, built_from: str) -> dict[str, Array] | None:
    """Map the arrays of a file; None if it is missing, damaged or built from other files."""
    try:
        if not path.is_file():  # opening a FIFO would block
            return None
        with open(path, "rb") as file:
            head, stat = file.read(mmap.PAGESIZE), os.fstat(file.fileno())
            if not head.startswith(MAGIC):
                return None
            header = msgspec.json.decode(head[len(MAGIC) :].strip(), type=_Header)
            if header.built_from != built_from:
                return None
        mapped = GuardedMap([path], [stat.st_size])
        if path.stat().st_ino != stat.st_ino:  # replaced in the meantime
            return None
        index = {entry.name: _mapped(mapped, entry) for entry in header.arrays}
    except (OSError, msgspec.DecodeError, ValueError, TypeError):
        return None
    version = (str(path), stat.st_ino, stat.st_mtime_ns, stat.st_size)
    if version not in _verified:
        checksum = 0
        for array in index.values():
            checksum = zlib.crc32(array.data, checksum)
        # different also if a page could not be read
        if _crc(header.built_from, header.arrays, checksum) != header.checksum:
            return None
        _verified.add(version)
    return index


class _CheckedArray(np.ndarray[Any, np.dtype[Any]]):
    """A mapped array that checks for read errors at every access to its elements."""

    guard: MapGuard | None = None

    def __array_finalize__(self, of: Any) -> None:
        self.guard = getattr(of, "guard", None)

    def __getitem__(self, key: Any) -> Any:
        """Return elements, or a view for a slice; raises OSError if a page of an element cannot be read."""
        item = super().__getitem__(key)
        return item if isinstance(key, slice) else self._checked(item)  # a view reads nothing

    def take(self, *arguments: Any, **more: Any) -> Any:
        """Take elements as NumPy does; raises OSError if a page of one cannot be read."""
        return self._checked(super().take(*arguments, **more))

    def _checked(self, item: Any) -> Any:
        if self.guard is not None:
            self.guard.check()
        return np.asarray(item) if isinstance(item, np.ndarray) else item


def _mapped(mapped: GuardedMap, array: _CachedArray) -> Array:
    """Return one array of a mapped file; raises ValueError if the file is too short for it."""
    plain: Array = np.frombuffer(mapped.bytes.data, array.dtype, array.samples, array.offset)
    checked = plain.view(_CheckedArray)
    checked.guard = mapped.guard
    return checked
