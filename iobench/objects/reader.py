"""Read rows of an artifact in an object store by ranges, or an object as a file, without other libraries."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

import numpy as np

from iobench.formats import Array, Convert, Index, Placement, Reader, Schema, identity, raw_bytes
from iobench.formats.placement import ScatterPlan
from iobench.objects.cache import CachedStore, ObjectCache
from iobench.objects.client import RETRIES, ObjectStore, StoredObject
from iobench.objects.request_log import LOG, WorkerLog
from iobench.objects.request_pool import Request, RequestPool

IN_FLIGHT = 64
REQUEST_BYTES = 4 << 20  # each waits for the store, and the slowest one holds up a batch: fewer wait less
COALESCE_BYTES = 64 << 10
FILE_PIECE_BYTES = 8 << 20  # of an object that is read as a file: as other clients of S3 split large ones
MAX_GAP = 32 << 20  # of COALESCE_BYTES; files lie further apart in the reader's address space


@dataclass(frozen=True)
class RemoteFiles:
    """Objects of an artifact; picklable."""

    url: str  # address of the artifact's folder
    objects: Mapping[str, StoredObject]  # with the versions that reads are pinned to
    cache: ObjectCache | None = None  # keeps on a disk what is read of them
    retries: int = RETRIES  # times that a request which failed is sent again
    log: WorkerLog | None = None  # where workers note their requests
    until: float = math.inf  # moment of `time.monotonic` after which requests are neither sent again nor
    # awaited for long

    def store(self) -> ObjectStore:
        """Return a new client for them, to be closed; raises as ObjectStore, or CachedStore with a cache."""
        if self.log:
            LOG.join(self.log)
        if self.cache:
            return CachedStore(self.url, self.objects, self.cache, self.retries, self.until)
        return ObjectStore(self.url, self.retries, self.until)

    def address(self, name: str) -> str:
        """Return the address of an object or folder for other clients, percent-encoded for a web server."""
        address = f"{self.url}/{name}"
        return quote(address, safe="/:%=,+") if address.startswith("http") else address


class RangeReader(Reader):
    """Reads rows at known positions by ranged GETs; rows of a batch with small gaps are one request.

    A sample takes one request per field, in the thread that calls. The requests of a batch are sent at once,
    in the order of their positions, at most `in_flight` at a time; see RequestPool. A request has at most
    `request_bytes`, unless one row is larger; gaps up to `coalesce_bytes` are fetched along with the rows
    around them. `samples` are the rows of the dataset, `widths` the bytes of a sample by field.
    """

    def __init__(
        self,
        schema: Schema,
        placements: Mapping[str, Placement],
        source: RemoteFiles,
        in_flight: int = IN_FLIGHT,
        request_bytes: int = REQUEST_BYTES,
        coalesce_bytes: int = COALESCE_BYTES,
    ) -> None:
        super().__init__(schema)
        self._store, self._placements = source.store(), placements
        self.samples, self.widths = schema.samples, {f.name: f.sample_bytes for f in schema.fields}
        self._request_bytes, self._coalesce_bytes = request_bytes, coalesce_bytes
        self._names, self._objects = [*source.objects], [*source.objects.values()]
        sizes = [one.size + 2 * MAX_GAP for one in self._objects]
        self._starts = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        numbers = {name: number for number, name in enumerate(self._names)}
        self._numbers = {
            name: np.array([numbers[str(file)] for file in place.files]) for name, place in placements.items()
        }
        self.requests = RequestPool(in_flight, source.until)

    def placement(self) -> Mapping[str, Placement]:
        """Return the location of each field."""
        return self._placements

    def positions(self, name: str, rows: Index) -> Index:
        """Return the positions of rows of a field in the address space of all objects."""
        file, offset = self._placements[name].locate(rows)
        return np.asarray(self._starts[self._numbers[name][file]] + offset)

    def fetch(self, position: int, length: int) -> memoryview:
        """Return the bytes from a position on, which are all in one object."""
        number = int(np.searchsorted(self._starts, position, side="right")) - 1
        start = position - int(self._starts[number])
        return self._store.get(self._names[number], start, length, self._objects[number].etag)

    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """Return one sample in new arrays, by one request per field."""
        self._check_row(row)
        out = {name: np.empty((1, *shape), dtype) for name, (shape, dtype) in self._specs.items()}
        for name, target in out.items():
            memory = raw_bytes(target)
            memory[:] = self.fetch(int(self.positions(name, np.array([row]))[0]), len(memory))
            LOG.read(len(memory))
        return {name: convert(array[0, ...]) for name, array in out.items()}

    def start(self) -> None:
        """Wait for requests, and send those that fail again, from now on."""
        self._store.stopping = self.requests.stopped = False

    def stop(self) -> None:
        """Abandon the requests in flight, which end at their first failure."""
        self._store.stopping = self.requests.stopped = True

    def close(self) -> None:
        """End the threads of requests and close the client, or leave that to requests that stall."""
        self.stop()
        self.requests.close(self._store.close)

    def _read_rows(self, rows: Index, out: Mapping[str, Array]) -> None:
        plan = ScatterPlan.of(self, rows, out)
        begins = request_begins(plan.starts, plan.ends, self._request_bytes, self._coalesce_bytes)
        ends = [*begins[1:], len(plan.starts)]
        pairs = zip(begins, ends, strict=True)
        self.requests.run(self._request(plan, low, high) for low, high in pairs)

    def _request(self, plan: ScatterPlan, low: int, high: int) -> Request:
        start = int(plan.starts[low])

        def take(got: memoryview) -> None:
            LOG.read(int((plan.ends[low:high] - plan.starts[low:high]).sum()))
            plan.take(low, high, np.frombuffer(got, np.uint8), start)

        return Request(partial(self.fetch, start, int(plan.ends[low:high].max()) - start), take)


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


class ObjectFile(io.RawIOBase):
    """Reads an object of an artifact by ranged GETs, one after the other.

    Raises LoaderFailed, CorruptArtifact or InvalidSettings as RemoteFiles.store and its reads do.
    """

    _store: ObjectStore | None = None  # until it is opened

    def __init__(self, files: RemoteFiles, name: str) -> None:
        self._store, self._name, self._object = files.store(), name, files.objects[name]
        self._position, self._piece = 0, memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the start of a buffer; 0 at the end of the object."""
        if not self._piece and (length := min(FILE_PIECE_BYTES, self._object.size - self._position)):
            assert self._store is not None
            self._piece = self._store.get(self._name, self._position, length, self._object.etag)
            self._position += length
        count = min(len(buffer), len(self._piece))
        buffer[:count], self._piece = self._piece[:count], self._piece[count:]
        return count

    def close(self) -> None:
        """Close the client."""
        if self._store is not None:
            self._store.close()
        super().close()
