"""Read rows of an artifact in an object store: neighbors together, many requests in flight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from iobench.dataset.opener import Opener
from iobench.formats import Array, Index, Placement, Rows, Schema
from iobench.objects.reader import COALESCE_BYTES, IN_FLIGHT, REQUEST_BYTES, RangeReader, RemoteFiles
from iobench.objects.request_pool import Request
from iobench.stream.backend import Backend
from iobench.stream.change_detector import ChangeDetector
from iobench.stream.options import StreamOptions
from iobench.stream.scatter_plan import ScatterPlan

# Each waits for the requests of one group of 8 MiB: several groups keep requests in flight while the slowest
# one of a group is awaited.
THREADS = 4


class CoalescingReader(RangeReader):
    """Reads all rows of a batch in the order of their positions, those with small gaps by one request.

    Parameters
    ----------
    request_bytes : int
        Most bytes of a request, unless one row is larger.
    coalesce_bytes : int
        Gaps up to this size are fetched along with the rows around them.
    """

    def __init__(
        self,
        schema: Schema,
        placements: Mapping[str, Placement],
        files: RemoteFiles,
        in_flight: int,
        request_bytes: int,
        coalesce_bytes: int,
    ) -> None:
        super().__init__(schema, placements, files, in_flight, request_bytes)
        self._coalesce_bytes = coalesce_bytes

    def _read_rows(self, rows: Index, out: Mapping[str, Array]) -> None:
        plan = ScatterPlan.of(self, rows, out)
        begins = request_begins(plan.starts, plan.ends, self.request_bytes, self._coalesce_bytes)
        ends = [*begins[1:], len(plan.starts)]
        pairs = zip(begins, ends, strict=True)
        self.requests.run(self._scattered(plan, low, high) for low, high in pairs)

    def _scattered(self, plan: ScatterPlan, low: int, high: int) -> Request:
        start = int(plan.starts[low])
        return Request(
            partial(self.fetch, start, int(plan.ends[low:high].max()) - start),
            lambda got: plan.take(low, high, np.frombuffer(got, np.uint8), start),
        )


def request_begins(starts: Index, ends: Index, request_bytes: int, coalesce_bytes: int) -> list[int]:
    """Return the indices of rows, sorted by position, where a new request begins.

    It begins after a gap of more than `coalesce_bytes`, and where a row would make it larger than
    `request_bytes`.
    """
    covered = np.maximum.accumulate(ends)  # rows may overlap
    breaks = np.flatnonzero(starts[1:] - covered[:-1] > coalesce_bytes) + 1
    begins: list[int] = []
    for low, high in zip([0, *breaks.tolist()], [*breaks.tolist(), len(starts)], strict=True):
        while low < high:
            begins.append(low)
            fits = int(np.searchsorted(covered[low:high], starts[low] + request_bytes, side="right"))
            low += max(1, fits)
    return begins


class RemoteBackend(Backend):
    """Reads whole windows of block order at once, and never touches the page cache."""

    direct = cold = True
    by_library = False
    reader: CoalescingReader

    def start(self, batches: Sequence[Rows]) -> None:
        """Send requests that fail again, from now on; nothing is read ahead before it is needed."""
        self.reader.start()

    def stop(self) -> None:
        """End the requests in flight at their first failure, so that leaving an epoch takes no more tries."""
        self.reader.stop()


def remote_backend(opener: Opener, schema: Schema, options: StreamOptions) -> RemoteBackend:
    """Open the backend of an artifact in an object store."""
    assert opener.remote is not None
    reader = CoalescingReader(
        schema,
        opener.remote.placements(),
        opener.remote.files,
        options.in_flight or IN_FLIGHT,
        options.request_bytes or REQUEST_BYTES,
        COALESCE_BYTES if options.coalesce_bytes is None else options.coalesce_bytes,
    )
    return RemoteBackend(opener.path, reader, options.threads or THREADS, ChangeDetector([]))
