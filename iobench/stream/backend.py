"""Backends of StreamLoader: through the page cache, past it, by requests, or by the format's reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from iobench.base.errors import IobenchError, LoaderFailed
from iobench.base.thresholds import WARM_LIMIT
from iobench.dataset.artifact_location import ChangeDetector
from iobench.dataset.opener import Opener
from iobench.formats import Array, Batch, Reader, Rows, Schema
from iobench.host import page_cache
from iobench.host.maps import SIGBUS_HANDLED, MapGuard
from iobench.objects.reader import RangeReader
from iobench.stream.block_reader import BlockReader
from iobench.stream.cached_reader import CachedReader, SpanReader
from iobench.stream.direct_reader import DirectReader
from iobench.stream.options import ReadOptions


class Backend:
    """The format's own reader, the number of threads for it, and a check that its files do not change.

    `unchanged` is checked with each read. `guards` watch over maps that a library has made of the files: an
    unreadable page is an error like any other, if the library copes with an empty page. Several threads read
    sooner than one if the format is `parallel`.
    """

    direct = False  # True if it reads past the page cache
    cold = False  # True if rows are known to come from the disk
    in_memory = False  # True if reading copies rows from memory, in any thread
    decodes = False  # True if rows come in blocks that have to be decoded
    by_library = True  # True if a library reads: it may map files, and crash if one is truncated
    knows_lengths = False  # True if `offsets` returns those of ragged fields

    def __init__(
        self,
        path: Path,
        reader: Reader,
        threads: int,
        unchanged: ChangeDetector,
        guards: Sequence[MapGuard] = (),
        parallel: bool = False,
    ) -> None:
        self.path, self.reader, self.threads, self.unchanged = path, reader, threads, unchanged
        self._guards, self.parallel = guards, parallel

    def read(self, rows: Rows, out: Batch) -> None:
        """Overwrite `out` with these rows; offsets of ragged fields are in it already.

        Raises CorruptArtifact if a file changes, LoaderFailed if the disk fails.
        """
        with self.checked():
            self.reader.read(rows, out)

    def batch(self, rows: Rows) -> Batch:
        """Return these rows in new memory, for a library that alone knows their lengths; raises as `read`."""
        with self.checked():
            return self.reader.batch(rows)

    def offsets(self, name: str, rows: Rows) -> npt.NDArray[np.int64]:
        """Return the offsets of a batch of these rows of a ragged field, if `knows_lengths`."""
        raise NotImplementedError

    def page_offset(self, name: str, rows: Rows) -> int:
        """Return the offset in a page at which memory for these rows should begin."""
        return 0

    def start(self, batches: Sequence[Rows]) -> None:
        """Start to read these batches ahead, if the backend can."""

    def stop(self) -> None:
        """End reading ahead, so that no thread waits for it."""

    def is_current(self) -> bool:
        """Return True if the files have not changed, and this is still the way to read them."""
        return self.unchanged.is_unchanged()

    def close(self) -> None:
        """Release the guards and close the reader."""
        for guard in self._guards:
            guard.release()
        self.reader.close()

    @contextmanager
    def checked(self, look: bool = True) -> Iterator[None]:
        """Raise the error that names the cause if the block fails; if `look`, also if a file changed."""
        with failures_of(self.path):
            if self.by_library or not SIGBUS_HANDLED:
                self.unchanged.check()
            try:
                yield
            except (IobenchError, OSError):
                self._check(every=True)  # its error names the cause
                raise
            if look:
                self._check()

    def _check(self, every: bool = False) -> None:
        self.unchanged.check(every)
        for guard in self._guards:
            guard.check()


Part: TypeAlias = CachedReader | BlockReader | SpanReader


class CompositeReader(Reader):
    """Combines readers, each of which reads some of the fields."""

    def __init__(self, schema: Schema, parts: Sequence[Part]) -> None:
        super().__init__(schema)
        self._parts = tuple(parts)
        self.cold = any(part.cold for part in parts)
        self.decodes = any(part.decodes for part in parts)

    def offsets(self, name: str, rows: Rows) -> npt.NDArray[np.int64]:
        """Return the offsets of a batch of these rows of a ragged field."""
        part = next(part for part in self._parts if any(name == f.name for f in part.schema.fields))
        assert isinstance(part, SpanReader)
        return part.offsets(name, rows)

    def read_ahead(self, batches: Sequence[Rows]) -> None:
        """Start to read these batches into the page cache; see `ReadaheadReader.read_ahead`."""
        for part in self._parts:
            part.read_ahead(batches)

    def stop(self) -> None:
        """Stop reading ahead; waiting threads get CancelledError."""
        for part in self._parts:
            part.stop()

    def close(self) -> None:
        """Close all readers."""
        for part in self._parts:
            part.close()

    def _check_out(self, count: int, out: Mapping[str, Array]) -> None:
        """Leave the check to the parts."""

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        self._read(slice(start, stop), out)

    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        self._read(rows, out)

    def _read(self, rows: Any, out: Mapping[str, Array]) -> None:
        for part in self._parts:
            names = {field.name for field in part.schema.fields}
            part.read(rows, {name: array for name, array in out.items() if name in names})


class CachedBackend(Backend):
    """Reads rows at known positions through the page cache."""

    by_library = False
    knows_lengths = True
    reader: Part | CompositeReader

    def __init__(
        self, path: Path, reader: Part | CompositeReader, threads: int, unchanged: ChangeDetector
    ) -> None:
        super().__init__(path, reader, threads, unchanged)
        self.cold = reader.cold
        self.decodes = reader.decodes
        self.in_memory = not self.cold and not self.decodes

    def start(self, batches: Sequence[Rows]) -> None:
        """Start to read these batches ahead."""
        if batches:
            self.reader.read_ahead(batches)

    def offsets(self, name: str, rows: Rows) -> npt.NDArray[np.int64]:
        """Return the offsets of a batch of these rows of a ragged field."""
        assert isinstance(self.reader, SpanReader | CompositeReader)
        return self.reader.offsets(name, rows)

    def wait_for(self, rows: Rows) -> None:
        """Wait until these rows, if they are adjacent, were read ahead; raises the error of that."""
        if isinstance(rows, slice) and isinstance(self.reader, CachedReader):
            self.reader.wait_for(rows.stop)

    def stop(self) -> None:
        """End reading ahead, so that no thread waits for it."""
        self.reader.stop()

    def is_current(self) -> bool:
        """Return True if the files have not changed, and are as cold or warm as when they were opened."""
        return super().is_current() and is_cold(self.unchanged.files) == self.cold


class DirectBackend(Backend):
    """Reads rows that are stored as they are in memory, past the page cache."""

    direct = cold = True
    by_library = False
    reader: DirectReader

    def page_offset(self, name: str, rows: Rows) -> int:
        """Return the offset in a page at which memory for these rows should begin."""
        return self.reader.page_offset(name, rows.start) if isinstance(rows, slice) else 0


def is_cold(files: Sequence[Path]) -> bool:
    """Return True if some of a sample of the files' pages are not in the page cache, or that is unknown."""
    try:
        return page_cache.residency(files, sampled=True) < WARM_LIMIT
    except page_cache.ResidencyUnknown:
        return True


@contextmanager
def failures_of(path: Path) -> Iterator[None]:
    """Turn an OSError of the disk under an artifact into LoaderFailed."""
    try:
        yield
    except IobenchError:  # some of these are OSErrors as well
        raise
    except OSError as error:
        raise LoaderFailed(
            f"cannot be read: {error.strerror or error}", kind="read-error", path=error.filename or path
        ) from None


# Each waits for the requests of one group of 8 MiB: several groups keep requests in flight while the slowest
# one of a group is awaited.
THREADS = 4


class RemoteBackend(Backend):
    """Reads whole windows of block order at once, and never touches the page cache."""

    direct = cold = True
    by_library = False
    reader: RangeReader

    def start(self, batches: Sequence[Rows]) -> None:
        """Send requests that fail again, from now on; nothing is read ahead before it is needed."""
        self.reader.start()

    def stop(self) -> None:
        """End the requests in flight at their first failure, so that leaving an epoch takes no more tries."""
        self.reader.stop()


def remote_backend(opener: Opener, schema: Schema, options: ReadOptions) -> Backend:
    """Open the backend of an artifact in an object store."""
    assert opener.remote is not None
    threads = options.threads or THREADS
    if not opener.remote.placed:  # the format's library reads, never from the page cache
        backend = Backend(opener.path, opener(), threads, ChangeDetector([]), parallel=True)
        backend.cold = True
        return backend
    reader = RangeReader(
        schema,
        opener.remote.placements(),
        replace(opener.remote.files, retries=options.retries),
        options.in_flight,
        options.request_bytes,
        options.coalesce_bytes,
    )
    return RemoteBackend(opener.path, reader, threads, ChangeDetector([]))
