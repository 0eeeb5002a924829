"""Cache on disk of the indexes that readers build, such as offsets of rows.

    DATA_DIR/NAME/.index/<artifact's folder>.<index name>     arrays, each from a page boundary on

A file is written under a temporary name and renamed. It is used only if it was built from the files that
are there now; otherwise it is built again. It is not part of an artifact: deleting it costs only time. If
it cannot be written, its arrays stay in memory. It is mapped, so that workers share it; a page that cannot
be read raises OSError in the code that uses the index.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import secrets
import zlib
from collections import OrderedDict
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from iobench.formats import Array, Build
from iobench.host.bus_errors import MapGuard
from iobench.host.maps import GuardedMap

FOLDER = ".index"
MAGIC = b"iobench index 1\n"
MEMORY_BYTES = 1 << 30  # of indexes that could not be written; the newest always stays


class _CachedArray(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An array in the file and its offset."""

    name: str
    dtype: str
    samples: int
    offset: int


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Header in the first page of a file.

    Attributes
    ----------
    built_from : str
        Digest of the files that the arrays describe.
    arrays : tuple of _CachedArray
        The arrays that follow.
    checksum : int
        CRC-32 of the fields above and of all arrays.
    """

    built_from: str
    arrays: tuple[_CachedArray, ...]
    checksum: int


kept_indexes: OrderedDict[tuple[str, str, str], dict[str, Array]] = OrderedDict()
_verified: set[tuple[str, int, int, int]] = set()  # files with a correct checksum


class IndexCache:
    """Callable that returns a reader's index from memory or disk, or builds and stores it.

    Parameters
    ----------
    data : Path
        The artifact's folder or file.
    index : Path or None
        Path of the cache files without the name of the index; None if nothing may be written.
    owner : str
        Format variant and schema that the index belongs to.
    """

    def __init__(self, data: Path, index: Path | None, owner: str) -> None:
        self._data, self._index, self._owner = data, index, owner

    def __call__(self, name: str, build: Build) -> dict[str, Array]:
        """Return the arrays of the index `name`, calling `build` if they are not cached."""
        built_from = self._stamp()
        key = (str(self._data), name, built_from)
        if key in kept_indexes:
            return kept_indexes[key]
        path = None if self._index is None else self._index.with_name(f"{self._index.name}.{name}")
        cached = None if path is None else _read(path, built_from)
        if cached is not None:
            return cached
        built = build()
        if built_from == self._stamp() and path is not None and _write(path, built_from, built):
            return _read(path, built_from) or built
        kept_indexes[key] = built
        while len(kept_indexes) > 1 and sum(map(_bytes, kept_indexes.values())) > MEMORY_BYTES:
            kept_indexes.popitem(last=False)
        return built

    def _stamp(self) -> str:
        """Return a digest of the files' names, sizes, times of change and inodes."""
        digest = hashlib.blake2b(self._owner.encode(), digest_size=16)
        files = [self._data] if self._data.is_file() else sorted(self._data.rglob("*"))
        for file in files:
            with contextlib.suppress(OSError):  # the reader that opens it reports that
                stat = file.stat()
                digest.update(f"{file}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ino}\n".encode())
        return digest.hexdigest()


def sweep(root: Path, listed: Collection[str]) -> None:
    """Remove indexes of artifacts that the dataset no longer lists, and incomplete files."""
    for path in (root / FOLDER).glob("*"):
        if path.name.rpartition(".")[0] not in listed:
            with contextlib.suppress(OSError):  # the next prepare tries again
                path.unlink()


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


def _bytes(arrays: dict[str, Array]) -> int:
    return sum(array.nbytes for array in arrays.values())


def _crc(built_from: str, arrays: tuple[_CachedArray, ...]) -> int:
    return zlib.crc32(msgspec.json.encode((built_from, arrays)))


def _write(path: Path, built_from: str, index: dict[str, Array]) -> bool:
    """Write arrays into a file that appears complete; returns whether that succeeded."""
    arrays, end = [], mmap.PAGESIZE
    for name, array in index.items():
        arrays.append(_CachedArray(name, array.dtype.str, len(array), end))
        end = -(-(end + array.nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(exist_ok=True)
        with open(temporary, "wb") as file:
            checksum = _crc(built_from, tuple(arrays))
            for entry, array in zip(arrays, index.values(), strict=True):
                data = np.ascontiguousarray(array)
                file.seek(entry.offset)
                file.write(data.data)
                checksum = zlib.crc32(data.data, checksum)
            header = MAGIC + msgspec.json.encode(_Header(built_from, tuple(arrays), checksum))
            if len(header) >= mmap.PAGESIZE:
                return False
            file.seek(0)
            file.write(header.ljust(mmap.PAGESIZE))
            file.truncate(end)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:  # a read-only folder or a full disk
        return False
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return True


def _read(path: Path, built_from: str) -> dict[str, Array] | None:
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
        checksum = _crc(header.built_from, header.arrays)
        for array in index.values():
            checksum = zlib.crc32(array.data, checksum)
        if checksum != header.checksum:  # also if a page could not be read
            return None
        _verified.add(version)
    return index
