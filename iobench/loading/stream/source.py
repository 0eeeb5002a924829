"""What the threads read rows from: through the page cache, past it, or by the format's own reader."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from iobench.dataset.manifest import Opener
from iobench.errors import InvalidSettings, LoaderFailed
from iobench.formats import Batch, Extent, FormatError, Reader, Rows, Schema, corrupt
from iobench.host import cache
from iobench.host.aio import DirectUnavailable
from iobench.loading.stream.cached import CachedReader
from iobench.loading.stream.direct import DirectReader

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


@dataclass
class Source:
    """A reader, how many threads it is worth, and a check that its files stay as they are."""

    path: Path
    reader: Reader
    threads: int
    unchanged: Unchanged

    @property
    def direct(self) -> bool:
        """Whether it reads past the page cache."""
        return isinstance(self.reader, DirectReader)

    @property
    def cold(self) -> bool:
        """Whether rows are known to come from the disk."""
        return self.direct or (isinstance(self.reader, CachedReader) and self.reader.cold)

    def phase(self, name: str, rows: Rows) -> int:
        """Where in a page memory for these rows should begin."""
        if isinstance(self.reader, DirectReader) and isinstance(rows, slice):
            return self.reader.phase(name, rows.start)
        return 0

    def read(self, rows: Rows, out: Batch) -> None:
        """Overwrite `out` with these rows.

        CorruptArtifact where a file changes, LoaderFailed where the disk fails.
        """
        self.unchanged.check()
        try:
            self.reader.read(rows, out)
        except FormatError:  # some of which are an OSError, too
            raise
        except OSError as error:
            raise LoaderFailed(f"reading {self.path}: {error}") from None
        self.unchanged.check()

    def start(self, batches: Sequence[Rows]) -> None:
        """Begin to read ahead of these batches, where that helps."""
        if not isinstance(self.reader, CachedReader) or not batches:
            return
        first, last = batches[0], batches[-1]
        if isinstance(first, slice) and isinstance(last, slice):
            self.reader.read_ahead(slice(first.start, last.stop))
        elif not isinstance(first, slice):
            self.reader.read_ahead(slice(0, len(self.reader)), int(first[0]))

    def stop(self) -> None:
        """End reading ahead, so that no thread waits for it."""
        if isinstance(self.reader, CachedReader):
            self.reader.stop()


def open_source(opener: Opener, schema: Schema, threads: int | None, direct: bool | None) -> Source:
    """The way to read an artifact that suits it and the state of its cache.

    Fields at a fixed stride are read through the cache if they are in it or will stay in it, else
    past it; `direct` decides instead. What has no fixed stride goes through the format's reader,
    one thread at a time. InvalidSettings where `direct` is asked for and cannot be had, LoaderFailed
    where the disk fails.
    """
    try:
        return _source(opener, schema, threads, direct)
    except FormatError:  # some of which are an OSError, too
        raise
    except OSError as error:
        raise LoaderFailed(f"reading {opener.path}: {error}") from None


def _source(opener: Opener, schema: Schema, threads: int | None, direct: bool | None) -> Source:
    reader = opener()
    unchanged = Unchanged(_files(opener.path))
    if reader.extents is None and not direct:
        return Source(opener.path, reader, threads or 1, unchanged)
    with reader:
        extents = places_of(reader, opener.format.variant)
    places = {field.name: extents[field.name] for field in schema.fields}
    reader = _placed(schema, places, direct)
    # past the cache one thread copies rows while the others wait for the disk
    cores = len(os.sched_getaffinity(0)) + isinstance(reader, DirectReader)
    return Source(opener.path, reader, threads or min(MOST_THREADS, cores), unchanged)


def places_of(reader: Reader, variant: str) -> dict[str, Extent]:
    """Where the fields lie in files; InvalidSettings where they do not at a fixed stride."""
    if reader.extents is None:
        raise InvalidSettings(f"{variant} has no fixed stride: it cannot be read past the cache")
    return reader.extents


def _placed(schema: Schema, places: dict[str, Extent], direct: bool | None) -> Reader:
    files = sorted({place.path for place in places.values()})
    cold = _residency(files) < cache.WARM_LIMIT
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
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino
