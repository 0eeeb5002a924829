"""What the threads read rows from: through the page cache, past it, or by the format's own reader."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from iobench.dataset.manifest import Opener
from iobench.errors import InvalidSettings, LoaderFailed
from iobench.formats import Batch, Blocks, FormatError, Placement, Reader, Rows, Schema, corrupt
from iobench.host import cache
from iobench.host.aio import DirectUnavailable
from iobench.host.bus_errors import FolderGuard, Guard
from iobench.loading.stream.blocks import BlockReader
from iobench.loading.stream.cached import CachedReader
from iobench.loading.stream.direct import DirectReader
from iobench.loading.stream.several import Several
from iobench.thresholds import WARM_LIMIT

FITS = 0.5  # of the memory that is free: data of no more is kept in the page cache
MOST_THREADS = 4
AT_ONCE = 16  # files that are looked at before and after each read: 30 µs
SMALL_BLOCK_ROWS, SMALL_BLOCK_BYTES = 16, 32 << 10  # decoded, on average


class Unchanged:
    """Complains about files that are no longer what they were when this was made.

    Of very many, each check looks at the next few: all are looked at again and again, in turn.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        stamps = [(file, _stamp(file)) for file in files]
        self._parts = [stamps[low : low + AT_ONCE] for low in range(0, len(stamps), AT_ONCE)] or [[]]
        self._turn = itertools.count()

    def check(self) -> None:
        """CorruptArtifact where a file was truncated, rewritten, replaced or removed since."""
        for file, stamp in self._parts[next(self._turn) % len(self._parts)]:
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
    decodes = False  # whether rows come in blocks that have to be decoded

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
    """Rows whose places are known, out of the page cache."""

    reader: CachedReader | BlockReader | Several

    def __init__(
        self, path: Path, reader: CachedReader | BlockReader | Several, threads: int, unchanged: Unchanged
    ) -> None:
        super().__init__(path, reader, threads, unchanged)
        self.cold = reader.cold
        self.decodes = not isinstance(reader, CachedReader)

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
    """Rows that are stored as they are in memory, past the page cache."""

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

    Fields that are stored as they are in memory are read through the cache if they are in it or will
    stay in it, else past it; `direct` decides instead. Encoded blocks are read through the cache and
    decoded by a thread for each processor. Where there is neither for a field, or blocks are small, all
    goes through the format's reader, one thread at a time. InvalidSettings where `direct` is asked for
    and cannot be had, LoaderFailed where the disk fails.
    """
    with failures_of(opener.path):
        files = _files(opener.path)
        unchanged = Unchanged(files)  # first: what changes while it is opened counts
        cold = _residency(files) < WARM_LIMIT  # before a reader looks at them
        with ExitStack() as ends:
            guard = FolderGuard(opener.path)  # a reader looks at what it maps to find where rows lie
            ends.callback(guard.release)
            reader, places, blocks = _looked_at(opener, schema, guard)
            ends.callback(reader.close)
            if direct:
                check_placed(places, schema, opener.format.variant)
            encoded = {name for table in blocks for name in table.fields}
            if {field.name for field in schema.fields} - places.keys() - encoded:
                ends.pop_all()
                return Backend(opener.path, reader, threads or 1, unchanged, [guard])
        cores = len(os.sched_getaffinity(0))
        if encoded:
            found = _decoding_reader(schema, places, blocks, cold)
            return CachedBackend(opener.path, found, threads or cores, unchanged)
        placed = _placed_reader(schema, places, direct, cold)
        if isinstance(placed, CachedReader):
            return CachedBackend(opener.path, placed, threads or min(MOST_THREADS, cores), unchanged)
        # one thread copies rows while the others wait for the disk
        return DirectBackend(opener.path, placed, threads or min(MOST_THREADS, cores + 1), unchanged)


def _looked_at(
    opener: Opener, schema: Schema, guard: Guard
) -> tuple[Reader, Mapping[str, Placement], list[Blocks]]:
    """A reader, and where its rows lie; OSError where the disk failed meanwhile."""
    try:
        reader = opener()
        try:
            places, blocks = reader.placement(), _large_blocks(reader, schema)
            guard.check()
        except BaseException:
            reader.close()
            raise
    except FormatError:
        guard.check()  # knows better what happened
        raise
    return reader, places, blocks


def check_placed(places: Mapping[str, Placement], schema: Schema, variant: str) -> None:
    """InvalidSettings where a field is not stored as it is in memory, but has to be decoded."""
    if {field.name for field in schema.fields} - places.keys():
        raise InvalidSettings(
            f"{variant} does not store samples as they are in memory: it cannot be read past the cache"
        )


def _large_blocks(reader: Reader, schema: Schema) -> list[Blocks]:
    """The blocks of these fields, but for those of a few small rows, which are not worth a call each."""
    found = []
    for table in reader.blocks():
        names = [name for name in table.fields if name in {field.name for field in schema.fields}]
        width = sum(schema.field(name).sample_bytes for name in names)
        rows = schema.samples / len(table.first)
        if names and (rows >= SMALL_BLOCK_ROWS or rows * width >= SMALL_BLOCK_BYTES):
            found.append(table)
    return found


def _decoding_reader(
    schema: Schema, places: Mapping[str, Placement], blocks: Sequence[Blocks], cold: bool
) -> BlockReader | Several:
    plain = tuple(field for field in schema.fields if field.name in places)
    others = tuple(field for field in schema.fields if field.name not in places)
    decoding = BlockReader(replace(schema, fields=others), blocks, cold)
    if not plain:
        return decoding
    return Several(schema, (CachedReader(replace(schema, fields=plain), places, cold), decoding))


def _placed_reader(
    schema: Schema, places: Mapping[str, Placement], direct: bool | None, cold: bool
) -> CachedReader | DirectReader:
    files = sorted({file for field in schema.fields for file in places[field.name].files})
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
    return [path for path in [folder, *sorted(folder.rglob("*"))] if path.is_file()]


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino
