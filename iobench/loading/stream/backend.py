"""What the threads read rows from: through the page cache, past it, or by the format's own reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from iobench.base.errors import (
    IobenchError,
    LoaderFailed,
)
from iobench.formats import Batch, Reader, Rows
from iobench.host.bus_errors import SIGBUS_HANDLED, MapGuard
from iobench.loading.stream.block_reader import BlockReader
from iobench.loading.stream.cached_reader import CachedReader
from iobench.loading.stream.change_detector import ChangeDetector
from iobench.loading.stream.composite_reader import CompositeReader
from iobench.loading.stream.direct_reader import DirectReader


class Backend:
    """The format's own reader, how many threads it is worth, and a check that its files stay as they are.

    `guards`: over maps that a library has made of the files. A page of them that cannot be read is
    an error like any other, as far as the library bears with an empty page.
    """

    direct = False  # whether it reads past the page cache
    cold = False  # whether rows are known to come from the disk
    decodes = False  # whether rows come in blocks that have to be decoded
    by_library = True  # which may map a file, and not survive that it was cut off

    def __init__(
        self,
        path: Path,
        reader: Reader,
        threads: int,
        unchanged: ChangeDetector,
        guards: Sequence[MapGuard] = (),
    ) -> None:
        self.path, self.reader, self.threads, self.unchanged = path, reader, threads, unchanged
        self._guards = guards

    def read(self, rows: Rows, out: Batch) -> None:
        """Overwrite `out` with these rows.

        CorruptArtifact where a file changes, LoaderFailed where the disk fails.
        """
        with failures_of(self.path):
            if self.by_library or not SIGBUS_HANDLED:
                self.unchanged.check()
            try:
                self.reader.read(rows, out)
            except (IobenchError, OSError):
                self._check()  # knows better what happened
                raise
            self._check()

    def page_offset(self, name: str, rows: Rows) -> int:
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

    by_library = False
    reader: CachedReader | BlockReader | CompositeReader

    def __init__(
        self,
        path: Path,
        reader: CachedReader | BlockReader | CompositeReader,
        threads: int,
        unchanged: ChangeDetector,
    ) -> None:
        super().__init__(path, reader, threads, unchanged)
        self.cold = reader.cold
        self.decodes = not isinstance(reader, CachedReader)

    def start(self, batches: Sequence[Rows]) -> None:
        """Begin to read ahead of these batches."""
        if batches:
            self.reader.read_ahead(batches)

    def stop(self) -> None:
        """End reading ahead, so that no thread waits for it."""
        self.reader.stop()


class DirectBackend(Backend):
    """Rows that are stored as they are in memory, past the page cache."""

    direct = cold = True
    by_library = False
    reader: DirectReader

    def page_offset(self, name: str, rows: Rows) -> int:
        """Where in a page memory for these rows should begin."""
        return self.reader.page_offset(name, rows.start) if isinstance(rows, slice) else 0


@contextmanager
def failures_of(path: Path) -> Iterator[None]:
    """Turn an OSError of the disk under an artifact into LoaderFailed."""
    try:
        yield
    except IobenchError:  # some of which are an OSError, too
        raise
    except OSError as error:
        raise LoaderFailed(f"reading {error.filename or path}: {error.strerror or error}") from None
