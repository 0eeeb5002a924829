"""Cache on disk of the indexes that readers build, such as offsets of rows.

    DATA_DIR/NAME/.index/<artifact's folder>.<index name>     arrays, each from a page boundary on

A file is used only if it was built from what is there now; otherwise it is built again. It is not part of an
artifact: deleting it costs only time. If it cannot be written, its arrays stay in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path

from iobench.base.errors import LoaderFailed
from iobench.dataset.index_file import IndexFile, read
from iobench.formats import Array, Build, build_now

FOLDER = ".index"
LATE = "index-late"  # kind of the error for an index that could not be built in time
MEMORY_BYTES = 1 << 30  # of indexes that could not be written; the newest always stays


kept_indexes: OrderedDict[tuple[str, str, str], dict[str, Array]] = OrderedDict()


class IndexCache:
    """Callable that returns an index from memory or disk, or builds and stores it.

    `index` is the path of the cache files without the name of the index, None if nothing may be written.
    `stamp` returns the identity of what the index describes; one of another identity is built again. Building
    ends at `end`, in seconds of `time.monotonic`.
    """

    def __init__(self, index: Path | None, stamp: Callable[[], str], end: float = math.inf) -> None:
        self._index, self._stamp, self._end = index, stamp, end

    def __call__(self, name: str, build: Build) -> dict[str, Array]:
        """Return the arrays of the index `name`, calling `build` if they are not cached.

        Raises LoaderFailed of kind LATE if they are not built by `end`; then nothing is stored.
        """
        built_from = self._stamp()
        key = (str(self._index), name, built_from)
        if key in kept_indexes:
            return kept_indexes[key]
        path = self._path(name)
        if (cached := self.cached(name)) is not None:
            return cached
        build = partial(self._in_time, build)
        stored = path is not None and self._store(path, built_from, build)
        if stored and (cached := self.cached(name)) is not None:
            return cached
        kept_indexes[key] = built = build_now(name, build)
        while len(kept_indexes) > 1 and sum(map(_bytes, kept_indexes.values())) > MEMORY_BYTES:
            kept_indexes.popitem(last=False)
        return built

    def cached(self, name: str) -> dict[str, Array] | None:
        """Return the arrays of the index `name` from its file; None if it has to be built."""
        path = self._path(name)
        return None if path is None else read(path, self._stamp())

    def rename(self, name: str, written: IndexFile) -> None:
        """Make a file that was written piece by piece the index `name`, if the folder can be written to."""
        if (path := self._path(name)) is not None:
            written.finish(path, self._stamp())

    def _in_time(self, build: Build) -> Iterable[dict[str, Array]]:
        """Yield what `build` yields, until the time is over."""
        for number, piece in enumerate(build()):
            if number and time.monotonic() > self._end:
                raise LoaderFailed(
                    "the index of its samples was not built in time",
                    kind=LATE,
                    hint="give a longer --max-time: it is built once",
                )
            yield piece

    def _path(self, name: str) -> Path | None:
        return None if self._index is None else self._index.with_name(f"{self._index.name}.{name}")

    def _store(self, path: Path, built_from: str, build: Build) -> bool:
        """Write an index and return whether that succeeded, and what it describes did not change."""
        if not _writable(path.parent):  # building takes long: not twice
            return False
        with contextlib.closing(IndexFile(path.parent, path.name)) as file:
            written = all(file.append(piece) for piece in build())
            return written and built_from == self._stamp() and file.finish(path, built_from)


def _writable(folder: Path) -> bool:
    """Create a folder if it is missing; return whether files can be written to it."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


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


def _bytes(arrays: dict[str, Array]) -> int:
    return sum(array.nbytes for array in arrays.values())
