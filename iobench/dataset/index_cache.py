"""Indexes that readers build, such as offsets of rows, and their cache on disk.

    DATA_DIR/NAME/.index/<artifact's folder>.<index name>     arrays, each from a page boundary on

A file is used only if it was built from what is there now; otherwise it is built again. It is not part of an
artifact: deleting it costs only time. If it cannot be written, its arrays stay in memory.

An index is named arrays, each from a page boundary on, behind a header in the first page. It is written piece
by piece under a temporary name and renamed. It is mapped, so that workers share it; a page that cannot be
read raises OSError in the code that uses the index.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import mmap
import os
import secrets
import shutil
import tempfile
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from iobench.base.errors import LoaderFailed
from iobench.formats import Array, build_now
from iobench.formats.reader import Build
from iobench.host.maps import GuardedMap, MapGuard
from iobench.host.memory import whole_pages

MAGIC = b"iobench index 3\n"
COPY_BYTES = 1 << 20
DTYPES = frozenset(np.dtype(kind).str for kind in "?bBhHiIqQ")  # bools and integers of this machine

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
    checksum: int  # CRC-32 of all behind the first page, and of the fields above

    @classmethod
    def of(cls, built_from: str, arrays: tuple[_CachedArray, ...], content: int) -> _Header:
        """Return the header of arrays of which `content` is the CRC-32."""
        return cls(built_from, arrays, zlib.crc32(msgspec.json.encode((built_from, arrays)), content))


class IndexFile:
    """Arrays that grow piece by piece in temporary files; `finish` gives them one name.

    The first array is written where it stays, others into files without a name until its length is known.
    """

    def __init__(self, folder: Path, prefix: str) -> None:
        self._path = folder / f"{prefix}.{secrets.token_hex(4)}.tmp"
        self._arrays: dict[str, tuple[np.dtype[Any], IO[bytes]]] = {}

    def append(self, piece: dict[str, Array]) -> bool:
        """Append to each array; returns whether that succeeded."""
        try:
            for name, array in piece.items():
                self._file(name, array.dtype).write(np.ascontiguousarray(array).data)
        except OSError:  # a read-only folder or a full disk
            return False
        return True

    def finish(self, path: Path, built_from: str) -> bool:
        """Complete the file under its name; returns whether that succeeded."""
        if not self._arrays:
            return False
        try:
            path.parent.mkdir(exist_ok=True)
            self._complete(built_from)
            os.replace(self._path, path)
        except (OSError, ValueError):
            return False
        return True

    def close(self) -> None:
        """Remove the temporary files that are left."""
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.callback(self._path.unlink, missing_ok=True)
            for _, file in self._arrays.values():
                stack.callback(file.close)

    def _file(self, name: str, dtype: np.dtype[Any]) -> IO[bytes]:
        if name not in self._arrays:
            folder, first = self._path.parent, not self._arrays
            folder.mkdir(exist_ok=True)
            file = open(self._path, "w+b") if first else tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
            file.seek(mmap.PAGESIZE if first else 0)
            self._arrays[name] = dtype, file
        return self._arrays[name][1]

    def _complete(self, built_from: str) -> None:
        """Put all arrays and the header into the first file; ValueError for a header above a page."""
        first, entries = next(iter(self._arrays.values()))[1], list[_CachedArray]()
        for name, (dtype, file) in self._arrays.items():
            size, start = file.tell(), whole_pages(first.tell())
            if file is first:
                size, start = size - mmap.PAGESIZE, mmap.PAGESIZE
            else:
                file.seek(0)
                first.seek(start)
                shutil.copyfileobj(file, first, COPY_BYTES)
            entries.append(_CachedArray(name, dtype.str, size // dtype.itemsize, start))
        first.truncate(whole_pages(first.tell()))
        first.seek(mmap.PAGESIZE)
        content = 0
        while data := first.read(COPY_BYTES):
            content = zlib.crc32(data, content)
        header = MAGIC + msgspec.json.encode(_Header.of(built_from, tuple(entries), content))
        if len(header) >= mmap.PAGESIZE:
            raise ValueError("too many arrays")
        first.seek(0)
        first.write(header.ljust(mmap.PAGESIZE))
        first.flush()
        os.fsync(first.fileno())


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
    except (OSError, msgspec.DecodeError, ValueError, TypeError, OverflowError):
        return None
    version = (str(path), stat.st_ino, stat.st_mtime_ns, stat.st_size)
    if version not in _verified:
        # another checksum if a page cannot be read
        content = zlib.crc32(mapped.bytes[mmap.PAGESIZE : stat.st_size].data)
        if _Header.of(header.built_from, header.arrays, content) != header:
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
    """Return one array of a mapped file; ValueError for another dtype, or if the file is too short for it."""
    if array.dtype not in DTYPES:
        raise ValueError(f"dtype {array.dtype}")
    plain: Array = np.frombuffer(mapped.bytes.data, array.dtype, array.samples, array.offset)
    checked = plain.view(_CheckedArray)
    checked.guard = mapped.guard
    return checked


FOLDER = ".index"
MEMORY_BYTES = 1 << 30  # of indexes that could not be written; the newest always stays


class IndexLate(LoaderFailed):
    """An index could not be built in time."""


kept_indexes: OrderedDict[tuple[str, str, str], dict[str, Array]] = OrderedDict()


class IndexCache:
    """Callable that returns an index from memory or disk, or builds and stores it.

    `index` is the path of the cache files without the name of the index, None if nothing may be written.
    `stamp` returns the identity of what the index describes; one of another identity is built again. Building
    ends at `end`, in seconds of `time.monotonic`.
    """

    def __init__(self, index: Path | None, stamp: Callable[[], str], end: float = math.inf) -> None:
        self._index, self._stamp, self._end = index, stamp, end

    def __call__(self, name: str, build: Build, *arrays: str) -> dict[str, Array]:
        """Return the index `name`, calling `build` if it is not cached with these `arrays`, and maybe others.

        Raises IndexLate if they are not built by `end`; then nothing is stored.
        """
        built_from = self._stamp()
        key = (str(self._index), name, built_from)
        if key in kept_indexes:
            return kept_indexes[key]
        path = self._path(name)
        if (cached := self.cached(name, *arrays)) is not None:
            return cached
        build = partial(self._in_time, build)
        stored = path is not None and self._store(path, built_from, build)
        if stored and (cached := self.cached(name)) is not None:
            return cached
        kept_indexes[key] = built = build_now(name, build)
        while (
            len(kept_indexes) > 1
            and sum(array.nbytes for one in kept_indexes.values() for array in one.values()) > MEMORY_BYTES
        ):
            kept_indexes.popitem(last=False)
        return built

    def cached(self, name: str, *arrays: str) -> dict[str, Array] | None:
        """Return the index `name` from its file; None if that lacks some of `arrays`, or has to be built."""
        path = self._path(name)
        index = None if path is None else read(path, self._stamp())
        return None if index is None or {*arrays} - index.keys() else index

    def rename(self, name: str, written: IndexFile) -> None:
        """Make a file that was written piece by piece the index `name`, if the folder can be written to."""
        if (path := self._path(name)) is not None:
            written.finish(path, self._stamp())

    def _in_time(self, build: Build) -> Iterable[dict[str, Array]]:
        """Yield what `build` yields, until the time is over."""
        for number, piece in enumerate(build()):
            if number and time.monotonic() > self._end:
                problem = "the index of its samples was not built in time"
                raise IndexLate(problem, hint="give a longer --max-time: it is built once")
            yield piece

    def _path(self, name: str) -> Path | None:
        return None if self._index is None else self._index.with_name(f"{self._index.name}.{name}")

    def _store(self, path: Path, built_from: str, build: Build) -> bool:
        """Write an index and return whether that succeeded, and what it describes did not change."""
        try:
            path.parent.mkdir(exist_ok=True)
        except OSError:
            return False
        if not os.access(path.parent, os.W_OK):  # building takes long: not twice
            return False
        with contextlib.closing(IndexFile(path.parent, path.name)) as file:
            written = all(file.append(piece) for piece in build())
            return written and built_from == self._stamp() and file.finish(path, built_from)


def stamp_of(data: Path, owner: str) -> str:
    """Return a digest of an owner and its files' names, sizes, times of change and inodes."""
    digest = hashlib.blake2b(owner.encode(), digest_size=16)
    for file in [data] if data.is_file() else sorted(data.rglob("*")):
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
    with contextlib.suppress(OSError):  # it is not empty, or not there
        (root / FOLDER).rmdir()
