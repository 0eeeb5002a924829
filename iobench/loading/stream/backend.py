"""What the threads read rows from: through the page cache, past it, or by the format's own reader."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from iobench.dataset.manifest import Opener
from iobench.errors import InvalidSettings, LoaderFailed
from iobench.formats import Batch, Extent, FormatError, Reader, Rows, Schema, corrupt
from iobench.host import cache
from iobench.host.aio import DirectUnavailable
from iobench.host.bus_errors import Guard, guards_of
from iobench.loading.stream.cached import CachedReader
from iobench.loading.stream.direct import DirectReader
from iobench.thresholds import WARM_LIMIT

FITS = 0.5  # of the memory that is free: data of no more is kept in the page cache
MOST_THREADS = 4


class Unchanged:
    """Complains about files that are no longer what they were when this was made."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._stamps = {file: _stamp(file) for file in files}

    def check(self) -> None:
        """CorruptArtifact where a file was truncated, rewritten, replaced or removed since."""
        for file, stamp in self._stamps.items():
            if (now := _stamp(file)) != stamp:
                found = f"{now[0]} bytes, changed while it was read" if now else "no such file"
                raise corrupt(file, f"{stamp[0]} bytes" if stamp else "a file", found)


class Backend:
    """The format's own reader, how many threads it is worth, and a check that its files stay as they are.

    `guards`: over maps that a library has made of the files. A page of them that cannot be read is
    an error like any other, as far as the library bears with an empty page.
    """

    direct = False  # whether it reads past the page cache
    cold = False  # whether rows are known to come from the disk

    def __init__(
        self, path: Path, reader: Reader, threads: int, unchanged: Unchanged, guards: Sequence[Guard] = ()
    ) -> None:
        self.path, self.reader, self.threads, self.unchanged = path, reader, threads, unchanged
        self._guards = guards

    def read(self, rows: Rows, out: Batch) -> None:
        """Overwrite `out` with these rows.

        CorruptArtifact where a file changes, LoaderFailed where the disk fails.
        """
        with failures_of(self.path):
            self.unchanged.check()
            try:
                self.reader.read(rows, out)
            except (FormatError, OSError):
                self._check()  # knows better what happened
                raise
            self._check()

    def phase(self, name: str, rows: Rows) -> int:
        """Where in a page memory for these rows should begin."""
        return 0

    def start(self, batches: Sequence[Rows]) -> None:
        """Begin to read ahead of these batches, where that helps."""

    def stop(self) -> None:
        """End reading ahead, so that no thread waits for it."""

    def close(self) -> None:
        """Close the reader."""
        for guard in self._guards:
            guard.release()
        self.reader.close()

    def _check(self) -> None:
        self.unchanged.check()
        for guard in self._guards:
            guard.check()


class CachedBackend(Backend):
    """Rows at a fixed stride, out of the page cache."""

    reader: CachedReader

    def __init__(self, path: Path, reader: CachedReader, threads: int, unchanged: Unchanged) -> None:
        super().__init__(path, reader, threads, unchanged)
        self.cold = reader.cold

    def start(self, batches: Sequence[Rows]) -> None:
        """Begin to read ahead of these batches."""
        if not batches:
            return
        first, last = batches[0], batches[-1]
        if isinstance(first, slice) and isinstance(last, slice):
            self.reader.read_ahead(slice(first.start, last.stop))
        elif not isinstance(first, slice):
            self.reader.read_ahead(slice(0, len(self.reader)), int(first[0]))

    def stop(self) -> None:
        """End reading ahead, so that no thread waits for it."""
        self.reader.stop()


class DirectBackend(Backend):
    """Rows at a fixed stride, past the page cache."""

    direct = cold = True
    reader: DirectReader

    def phase(self, name: str, rows: Rows) -> int:
        """Where in a page memory for these rows should begin."""
        return self.reader.phase(name, rows.start) if isinstance(rows, slice) else 0


@contextmanager
def failures_of(path: Path) -> Iterator[None]:
    """Turn an OSError of the disk under an artifact into LoaderFailed."""
    try:
        yield
    except FormatError:  # some of which are an OSError, too
        raise
    except OSError as error:
        raise LoaderFailed(f"reading {error.filename or path}: {error.strerror or error}") from None


def open_backend(opener: Opener, schema: Schema, threads: int | None, direct: bool | None) -> Backend:
    """The way to read an artifact that suits it and the state of its cache.

    Fields at a fixed stride are read through the cache if they are in it or will stay in it, else
    past it; `direct` decides instead. What has no fixed stride goes through the format's reader,
    one thread at a time. InvalidSettings where `direct` is asked for and cannot be had, LoaderFailed
    where the disk fails.
    """
    with failures_of(opener.path):
        unchanged = Unchanged(_files(opener.path))  # first: what changes while it is opened counts
        reader = opener()
        if reader.extents is None and not direct:
            return Backend(opener.path, reader, threads or 1, unchanged, guards_of(opener.path))
        with reader:
            extents = places_of(reader, opener.format.variant)
        places = {field.name: extents[field.name] for field in schema.fields}
        found = _placed_reader(schema, places, direct)
        cores = len(os.sched_getaffinity(0))
        if isinstance(found, CachedReader):
            return CachedBackend(opener.path, found, threads or min(MOST_THREADS, cores), unchanged)
        # one thread copies rows while the others wait for the disk
        return DirectBackend(opener.path, found, threads or min(MOST_THREADS, cores + 1), unchanged)


def places_of(reader: Reader, variant: str) -> dict[str, Extent]:
    """Where the fields lie in files; InvalidSettings where they do not at a fixed stride."""
    if reader.extents is None:
        raise InvalidSettings(f"{variant} has no fixed stride: it cannot be read past the cache")
    return reader.extents


def _placed_reader(
    schema: Schema, places: dict[str, Extent], direct: bool | None
) -> CachedReader | DirectReader:
    files = sorted({place.path for place in places.values()})
    cold = _residency(files) < WARM_LIMIT
    if direct or (direct is None and cold and not _fits(files)):
        try:
            return DirectReader(schema, places)
        except DirectUnavailable as error:
            if direct:
                raise InvalidSettings(f"--direct: {error}; leave it out") from error
    return CachedReader(schema, places, cold)


def _residency(files: Sequence[Path]) -> float:
    try:
        return cache.residency(files)
    except cache.Unverifiable:
        return 0.0


def _fits(files: Sequence[Path]) -> bool:
    return sum(file.stat().st_size for file in files) <= FITS * cache.free_memory()


def _files(folder: Path) -> list[Path]:
    if folder.is_file():  # data that were added may be one
        return [folder]
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino
