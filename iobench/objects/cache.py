"""Cache of objects in a folder on a disk: whole pieces of one version each, together at most so many bytes.

    FOLDER/<object>-<number>   one piece and its checksum; <object> is a hash of address, name and version
    FOLDER/.size               bytes of all pieces; locked while a process reserves or releases some
    FOLDER/.lock               held, shared, by every process that uses the folder
    FOLDER/.tmp-*              pieces that are being written, or were when their process was killed

A piece is written aside and renamed. Nothing is synced to the disk: a piece that a crash of the machine has
torn fails its checksum, and is fetched again.

When the folder is full, no more pieces are added, and none is evicted: an epoch reads every sample once, so
that the piece that was used last is the one that is needed last. Evicting it would fetch every piece again
in each epoch that is read in order.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import math
import os
import threading
import warnings
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from iobench.base.errors import InvalidSettings, LoaderFailed
from iobench.base.files import TEMPORARY, replace_file, system_errors_as
from iobench.base.text import reason
from iobench.objects.client import RETRIES, ObjectStore, StoredObject
from iobench.objects.request_log import LOG

FOLDER = ".object-cache"  # of a dataset's folder
CHECKSUM_BYTES = 4
_SIZE_BYTES = 8
# A random row costs a request of a whole piece while the cache fills. Four make a request of the default
# size, and 10 GiB are 40,960 files.
PIECE_BYTES = 256 << 10


@dataclass(frozen=True)
class ObjectCache:
    """Folder that keeps pieces of objects, and the most bytes that they may take; picklable."""

    folder: Path
    limit_bytes: int
    warns: bool = True  # once, if the disk takes no more; a run reports the rejected pieces itself


class PieceCache:
    """Pieces in an open folder; safe from several threads and processes.

    The first that opens a folder removes what killed processes left, pieces of objects that are not `known`,
    and those beyond the limit. Raises LoaderFailed if the folder cannot be written.
    """

    def __init__(self, cache: ObjectCache, known: Collection[str]) -> None:
        self._folder, self._limit_bytes, self._warns = cache.folder, cache.limit_bytes, cache.warns
        self._mutex = threading.Lock()  # a lock of a file is one for all threads of a process
        self._intact = set[str]()  # pieces whose checksum this process has compared or made
        self._full = self._failed = False  # the limit is reached; the disk did not take a piece
        hint = "use another data_dir, or no object cache"
        with (
            system_errors_as(LoaderFailed, "the object cache cannot be written", cache.folder, hint=hint),
            contextlib.ExitStack() as stack,
        ):
            cache.folder.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(open(cache.folder / ".lock", "ab"))
            (cache.folder / ".size").touch()
            self._size = stack.enter_context(open(cache.folder / ".size", "r+b", buffering=0)).fileno()
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._sweep(known)
            fcntl.flock(lock, fcntl.LOCK_SH)
            self._files = stack.pop_all()

    def close(self) -> None:
        """Release the folder; a second call does nothing."""
        self._files.close()

    def read(self, name: str, start: int, out: memoryview, piece_bytes: int) -> bool:
        """Fill memory with a part of a piece of `piece_bytes`; False if it is missing, or was damaged."""
        try:
            file = os.open(self._folder / name, os.O_RDONLY)
        except FileNotFoundError:
            return False
        with contextlib.suppress(OSError):
            try:
                if self._is_intact(name, file, piece_bytes) and os.preadv(file, [out], start) == len(out):
                    return True
            finally:
                os.close(file)
        self._remove(name, piece_bytes)
        return False

    def accepts(self, pieces: int) -> bool:
        """Return whether there may be room; if the disk took none before, count these pieces as rejected."""
        if self._failed:
            LOG.rejected(pieces)
        return not (self._failed or self._full)

    def reserve(self, piece_bytes: int) -> bool:
        """Return whether there is room for another piece, which is then to be stored, or released."""
        return self._add(piece_bytes + CHECKSUM_BYTES)

    def release(self, piece_bytes: int) -> None:
        """Give back the room of a piece that is not stored."""
        self._add(-piece_bytes - CHECKSUM_BYTES)

    def store(self, name: str, piece: memoryview) -> None:
        """Write a piece for which room was reserved; if the disk does not take it, take no more."""
        path, stored = self._folder / name, False
        try:
            if not path.exists():  # or another process was faster
                replace_file(path, b"".join((piece, _checksum(name, piece))))
                stored = True
                self._intact.add(name)
        except OSError as error:
            LOG.rejected(1)
            self._fail(reason(error))
        finally:
            if not stored:
                self.release(len(piece))

    def _is_intact(self, name: str, file: int, piece_bytes: int) -> bool:
        """Compare the checksum, which ends the file, if this process has not done so before."""
        if name not in self._intact:
            content = memoryview(os.pread(file, piece_bytes + CHECKSUM_BYTES + 1, 0))
            if content[piece_bytes:] != _checksum(name, content[:piece_bytes]):
                return False
            self._intact.add(name)
        return True

    def _remove(self, name: str, piece_bytes: int) -> None:
        self._intact.discard(name)
        with contextlib.suppress(OSError):  # another thread or process has removed it
            os.unlink(self._folder / name)
            self.release(piece_bytes)

    def _fail(self, cause: str) -> None:
        with self._mutex:
            first, self._failed = not self._failed, True
        if first and self._warns:
            warnings.warn(
                f"{self._folder}: the object cache takes no more pieces: {cause}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _add(self, count: int) -> bool:
        """Add to the bytes of all pieces, unless that would exceed the limit."""
        with self._mutex:
            fcntl.flock(self._size, fcntl.LOCK_EX)
            try:
                used = int.from_bytes(os.pread(self._size, _SIZE_BYTES, 0), "little") + count
                self._full = count > 0 and used > self._limit_bytes
                if not self._full:
                    self._write_size(max(0, used))
                return not self._full
            finally:
                fcntl.flock(self._size, fcntl.LOCK_UN)

    def _write_size(self, used: int) -> None:
        os.pwrite(self._size, used.to_bytes(_SIZE_BYTES, "little"), 0)

    def _sweep(self, known: Collection[str]) -> None:
        """Remove what is no piece of a known object, or beyond the limit, and count the rest."""
        used = 0
        for entry in os.scandir(self._folder):
            if entry.name.startswith(TEMPORARY) or not entry.name.startswith("."):
                size = entry.stat().st_size
                if entry.name.rpartition("-")[0] in known and used + size <= self._limit_bytes:
                    used += size
                else:
                    os.unlink(entry)
        self._write_size(used)


def _checksum(name: str, piece: memoryview) -> bytes:
    """Return the checksum of a piece and its name."""
    return zlib.crc32(piece, zlib.crc32(name.encode())).to_bytes(CHECKSUM_BYTES, "little")


@dataclass(frozen=True)
class _Piece:
    """A piece of an object, of which the bytes from `low` to `high` are needed; all count from its start."""

    name: str
    low: int
    high: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class CachedStore(ObjectStore):
    """Reads objects of one version from a cache, and requests whole pieces that are not in it.

    As long as there is room: then it requests what is needed of them, as without a cache. Threads that need
    the same piece wait for one request; processes may send one each.

    Raises InvalidSettings if the server gives no versions, LoaderFailed if the folder cannot be written.
    """

    def __init__(
        self,
        url: str,
        objects: Mapping[str, StoredObject],
        cache: ObjectCache,
        retries: int = RETRIES,
        until: float = math.inf,
    ) -> None:
        super().__init__(url, retries, until)
        if not all(one.etag for one in objects.values()):
            problem, expected = "an object cache for objects without versions", "a server that gives ETags"
            hint = "leave the object cache out"
            raise InvalidSettings(problem, "no-versions", url, expected=expected, hint=hint)
        self._objects = objects
        self._ids = {name: _id(url, name, one) for name, one in objects.items()}
        self._cache = PieceCache(cache, set(self._ids.values()))
        self._fetching, self._mutex = dict[str, threading.Event](), threading.Lock()

    def get(self, name: str, start: int, length: int, etag: str) -> memoryview:
        """Return bytes of an object of this version, from the cache as far as they are there."""
        out, fetched = memoryview(bytearray(length)), 0
        missing = [one for one in self._pieces(name, start, length) if not self._read(one, out, start)]
        with self._claimed(missing if self._cache.accepts(len(missing)) else ()) as own:
            rest = [one for one in missing if one.name in own and not self._read(one, out, start)]
            fetched += self._fetch(name, etag, rest, out, start, keep=True)
        awaited = [one for one in missing if one.name not in own]
        rest = [one for one in awaited if not self._read_later(one, out, start)]
        fetched += self._fetch(name, etag, rest, out, start, keep=False)
        LOG.looked_up(length, length - fetched)
        return out

    def close(self) -> None:
        """Release the cache."""
        self._cache.close()

    def _pieces(self, name: str, start: int, length: int) -> Iterator[_Piece]:
        size, end = self._objects[name].size, start + length
        for first in range(start - start % PIECE_BYTES, end, PIECE_BYTES):
            last = min(first + PIECE_BYTES, size)
            number = first // PIECE_BYTES
            yield _Piece(f"{self._ids[name]}-{number}", max(start, first), min(end, last), first, last)

    def _read(self, one: _Piece, out: memoryview, start: int) -> bool:
        target = out[one.low - start : one.high - start]
        return self._cache.read(one.name, one.low - one.start, target, one.size)

    def _read_later(self, one: _Piece, out: memoryview, start: int) -> bool:
        """Read a piece when the thread that fetches it has ended that."""
        with self._mutex:
            done = self._fetching.get(one.name)
        if done is not None:
            done.wait()
        return self._read(one, out, start)

    @contextlib.contextmanager
    def _claimed(self, pieces: Sequence[_Piece]) -> Iterator[set[str]]:
        """Yield the names of those pieces that no other thread fetches; in the block this one does."""
        done = threading.Event()
        with self._mutex:
            own = {one.name for one in pieces if one.name not in self._fetching}
            self._fetching.update(dict.fromkeys(own, done))
        try:
            yield own
        finally:
            with self._mutex:
                for name in own:
                    del self._fetching[name]
            done.set()

    def _fetch(
        self, name: str, etag: str, pieces: Sequence[_Piece], out: memoryview, start: int, keep: bool
    ) -> int:
        """Request pieces, if `keep` store those for which there is room; return the bytes needed of them."""
        kept = {one for one in pieces if keep and self._cache.reserve(one.size)}
        unstored = set(kept)
        try:
            for run in _runs(pieces, kept):
                low, high = _span(run[0], kept)[0], _span(run[-1], kept)[1]
                got = super().get(name, low, high - low, etag)
                for one in run:
                    out[one.low - start : one.high - start] = got[one.low - low : one.high - low]
                    if one in kept:
                        unstored.discard(one)
                        self._cache.store(one.name, got[one.start - low : one.end - low])
        finally:
            for one in unstored:
                self._cache.release(one.size)
        return sum(one.high - one.low for one in pieces)


def _span(one: _Piece, kept: set[_Piece]) -> tuple[int, int]:
    """Return the bytes to request: all of a piece that is kept, else what is needed of it."""
    return (one.start, one.end) if one in kept else (one.low, one.high)


def _runs(pieces: Sequence[_Piece], kept: set[_Piece]) -> list[list[_Piece]]:
    """Return the pieces in runs without a gap between the bytes to request."""
    runs: list[list[_Piece]] = []
    for one in pieces:
        if runs and _span(runs[-1][-1], kept)[1] == _span(one, kept)[0]:
            runs[-1].append(one)
        else:
            runs.append([one])
    return runs


def _id(url: str, name: str, one: StoredObject) -> str:
    """Return a name for a version of an object that no other one has."""
    text = "\0".join((url, name, one.etag, str(one.size)))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
