"""Read rows of an artifact in an object store: neighbors together, many requests in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from iobench.dataset.opener import Opener
from iobench.formats import Rows, Schema
from iobench.objects.reader import RangeReader
from iobench.stream.backend import Backend
from iobench.stream.change_detector import ChangeDetector
from iobench.stream.options import StreamOptions

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


class LibraryBackend(Backend):
    """Reads batches by the library of a format, several at once; it never touches the page cache."""

    cold = True


def remote_backend(opener: Opener, schema: Schema, options: StreamOptions) -> Backend:
    """Open the backend of an artifact in an object store."""
    assert opener.remote is not None
    threads = options.threads or THREADS
    if not opener.remote.placed:
        return LibraryBackend(opener.path, opener(), threads, ChangeDetector([]), parallel=True)
    reader = RangeReader(
        schema,
        opener.remote.placements(),
        replace(opener.remote.files, retries=options.retries),
        options.in_flight,
        options.request_bytes,
        options.coalesce_bytes,
    )
    return RemoteBackend(opener.path, reader, threads, ChangeDetector([]))
