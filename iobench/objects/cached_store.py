"""Object store whose objects are kept on a disk, piece by piece, as they are read."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from iobench.base.errors import InvalidSettings
from iobench.objects.client import RETRIES, ObjectStore, StoredObject
from iobench.objects.piece_cache import ObjectCache, PieceCache
from iobench.objects.request_log import LOG

# A random row costs a request of a whole piece while the cache fills. Four make a request of the default
# size, and 10 GiB are 40,960 files.
PIECE_BYTES = 256 << 10


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

    @contextmanager
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
