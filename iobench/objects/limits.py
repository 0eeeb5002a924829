"""Limits of an object store: what a bare client gets, independent of a loader."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from iobench.base.units import bytes_text
from iobench.host.hardware_limits import Limit
from iobench.objects.client import ObjectStore
from iobench.objects.reader import RemoteFiles

T = TypeVar("T")
NAME = "object store"
MANY = (16, 64, 128)  # requests in flight that are tried
WHOLE_BYTES = 64 << 20  # of an object that is fetched whole, so that it does not fill the memory


def ranged_gets(files: Sequence[RemoteFiles], size: int, in_flight: int, seconds: float) -> Limit:
    """Measure GETs of `size` bytes at random places of the largest object, so many in flight all the time.

    What comes before each connection has had its first answer does not count. Raises LoaderFailed or
    CorruptArtifact as ObjectStore does.
    """
    chosen = max(files, key=lambda one: max(o.size for o in one.objects.values()))
    name, largest = max(chosen.objects.items(), key=lambda item: item[1].size)
    store, size = ObjectStore(chosen.url), max(1, min(size, largest.size))
    barrier, stop = threading.Barrier(in_flight), threading.Event()

    def work(number: int) -> tuple[float, list[tuple[float, int]]]:
        draw, ends = random.Random(number), list[tuple[float, int]]()
        try:
            store.get(name, draw.randrange(largest.size - size + 1), size, largest.etag)
            barrier.wait()
        except BaseException:
            barrier.abort()
            raise
        began = time.perf_counter()
        while not stop.is_set() and time.perf_counter() - began < seconds:
            got = store.get(name, draw.randrange(largest.size - size + 1), size, largest.etag)
            ends.append((time.perf_counter(), len(got)))
        return began, ends

    results = _in_threads(work, in_flight, stop)
    began = min(first for first, _ in results)
    # up to the first worker's end all are at work; of a single long request there is no other end
    last = max(min(ends[-1][0] for _, ends in results), began + min(seconds, 1e-3))
    done = [count for _, ends in results for moment, count in ends if moment <= last]
    return Limit(
        NAME,
        f"{in_flight} ranged GETs of {bytes_text(size)} in flight"
        if in_flight > 1
        else f"one ranged GET of {bytes_text(size)} at a time",
        sum(done) / (last - began),
        len(done) / (last - began),
    )


def _in_threads(work: Callable[[int], T], count: int, stop: threading.Event) -> list[T]:
    """Return the results of `work` for so many numbers at once; `stop` is set when this ends early."""
    with ThreadPoolExecutor(count, "iobench-limit") as pool:
        futures = [pool.submit(work, number) for number in range(count)]
        try:
            wait(futures)
        finally:
            stop.set()
    failed = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(failed, key=lambda one: isinstance(one, threading.BrokenBarrierError)):
        raise error  # the first that did not only wait for another
    return [future.result() for future in futures]
