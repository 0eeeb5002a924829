"""Backends of StreamLoader: through the page cache, past it, or by the format's own reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from iobench.base.errors import IobenchError, LoaderFailed
from iobench.base.thresholds import WARM_LIMIT
from iobench.formats import Batch, Reader, Rows
from iobench.host import page_cache
from iobench.host.bus_errors import SIGBUS_HANDLED, MapGuard
from iobench.stream.change_detector import ChangeDetector
from iobench.stream.composite_reader import CompositeReader, Part
from iobench.stream.direct_reader import DirectReader
from iobench.stream.span_reader import SpanReader


class Backend:
    """The format's own reader, the number of threads for it, and a check that its files do not change.

    Parameters
    ----------
    path : Path
        The artifact.
    reader : Reader
        Its open reader.
    threads : int
        Number of reading threads.
    unchanged : ChangeDetector
        Checked with each read.
    guards : sequence of MapGuard
        Guards over maps that a library has made of the files: an unreadable page is an error like any other,
        if the library copes with an empty page.
    parallel : bool
        True if several threads read sooner than one.
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
        with self._checked():
            self.reader.read(rows, out)

    def batch(self, rows: Rows) -> Batch:
        """Return these rows in new memory, for a library that alone knows their lengths; raises as `read`."""
        with self._checked():
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
    def _checked(self) -> Iterator[None]:
        """Raise the error that names the cause if reading in the block fails or a file changes."""
        with failures_of(self.path):
            if self.by_library or not SIGBUS_HANDLED:
                self.unchanged.check()
            try:
                yield
            except (IobenchError, OSError):
                self._check(every=True)  # its error names the cause
                raise
            self._check()

    def _check(self, every: bool = False) -> None:
        self.unchanged.check(every)
        for guard in self._guards:
            guard.check()


class CachedBackend(Backend):
    """Reads rows at known positions through the page cache."""

    by_library = False
    knows_lengths = True
    reader: Part | CompositeReader

    def __init__(
        self,
        path: Path,
        reader: Part | CompositeReader,
        threads: int,
        unchanged: ChangeDetector,
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
