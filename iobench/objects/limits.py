"""Limits of an object store: what a bare client gets, independent of a loader."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise

from iobench.base.units import bytes_text
from iobench.host.hardware_limits import Limit
from iobench.objects.client import ObjectStore
from iobench.objects.reader import RemoteFiles

NAME = "object store"
MANY = (16, 64, 128)  # requests in flight that are tried
MOST_BYTES = 128 << 20  # of them together
LEAST_PIECES = 4  # of each connection, where a longer request has several
FIRST_BYTES = 64 << 10  # of the request that opens a connection
WHOLE_BYTES = 64 << 20  # of an object that is fetched whole, so that it does not fill the memory


def many_in_flight(size: int) -> tuple[int, ...]:
    """Return the numbers of requests of `size` bytes to try at once, which fit into memory together."""
    return tuple(sorted({max(1, min(count, MOST_BYTES // size)) for count in MANY}))


def ranged_gets(files: Sequence[RemoteFiles], size: int, in_flight: int, seconds: float) -> Limit:
    """Measure GETs of `size` bytes at random places of the largest object, so many in flight all the time.

    What comes before each connection has had its first answer does not count. Bytes count as they come,
    evenly between two moments at which some came, until each connection has had several pieces: over a slow
    link some are served long before others. Raises LoaderFailed or CorruptArtifact as ObjectStore does.
    """
    chosen = max(files, key=lambda one: max(o.size for o in one.objects.values()))
    name, largest = max(chosen.objects.items(), key=lambda item: item[1].size)
    store, size = ObjectStore(chosen.url), max(1, min(size, largest.size))
    barrier, stop, behind = threading.Barrier(in_flight), threading.Event(), set(range(in_flight))

    def work(number: int) -> list[tuple[float, int]]:
        draw, came = random.Random(number), list[tuple[float, int]]()
        try:
            store.get(name, 0, min(size, FIRST_BYTES), largest.etag)
            barrier.wait()
        except BaseException:
            barrier.abort()
            raise
        came.append((began := time.perf_counter(), 0))
        try:
            while not stop.is_set() and (behind or time.perf_counter() - began < seconds):
                start = draw.randrange(largest.size - size + 1)
                store.consume(name, start, size, lambda count: came.append((time.perf_counter(), count)))
                if len(came) > LEAST_PIECES:
                    behind.discard(number)
        finally:
            behind.discard(number)
        return came

    with ThreadPoolExecutor(in_flight, "iobench-limit") as pool:
        futures = [pool.submit(work, number) for number in range(in_flight)]
        try:
            wait(futures)
        finally:
            stop.set()
    failed = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(failed, key=lambda one: isinstance(one, threading.BrokenBarrierError)):
        raise error  # the first that did not only wait for another
    results = [future.result() for future in futures]
    began = min(came[0][0] for came in results)
    # up to the first worker's end all are at work
    took = max(min(came[-1][0] for came in results) - began, 1e-6)
    bytes_per_s = sum(_bytes_until(began + took, came) for came in results) / took
    one, many = "one ranged GET of {} at a time", "{} ranged GETs of {} in flight"
    how = many.format(in_flight, bytes_text(size)) if in_flight > 1 else one.format(bytes_text(size))
    return Limit(NAME, how, bytes_per_s, bytes_per_s / size)


def _bytes_until(last: float, came: Sequence[tuple[float, int]]) -> float:
    """Return the bytes that came over a connection until a moment."""
    pieces = ((start, end, count) for (start, _), (end, count) in pairwise(came))
    return sum(count * max(0.0, min(1.0, (last - start) / (end - start))) for start, end, count in pieces)
