"""Hardware limits: bandwidth of the disk and of the link to a device, independent of a loader.

Each limit is the best of a few methods, each run for a moment. A limit that something exceeds is too low.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from iobench.base.thresholds import LOWER_CACHE_SPEEDUP
from iobench.base.units import bytes_text
from iobench.host.aio import ReadQueue, open_direct
from iobench.host.memory import PAGE, touched_array

if TYPE_CHECKING:
    import torch

HOST_TO_DEVICE, DEVICE_TO_HOST = "host to device", "device to host"  # names of limits
SECONDS = 0.25  # per method
PIECES = ((1 << 20, 8 << 20), (4 << 20, 64 << 20))  # bytes per read and bytes in flight
READS = 1500  # single reads of the lower-cache probe
WARM_UP_S = 0.1  # in which an idle link reaches its full speed
CHUNK_BYTES, MIN_COPIES, MAX_COPIES = 32 << 20, 8, 256  # submitted to the device at a time


@dataclass(frozen=True)
class Limit:
    """One limit in bytes per second, and in reads per second for random reads; `how` is the method."""

    name: str
    how: str
    bytes_per_s: float
    reads_per_s: float | None = None


def sequential_read(file: Path, seconds: float = SECONDS) -> Limit:
    """Measure sequential reads past the page cache, with enough reads in flight."""
    size = file.stat().st_size
    rates = []
    with _direct(file) as descriptor:
        for piece, in_flight in PIECES:
            offsets = np.arange(0, size, min(piece, whole_pages(size)))
            rates.append(measure_reads(descriptor, offsets, piece, in_flight, seconds)[1])
    return Limit("disk", "in order, past the page cache", max(rates))


def random_read(file: Path, size: int, seconds: float = SECONDS) -> Limit:
    """Measure random reads of `size` bytes past the page cache, in whole pages; only `size` counts."""
    length = whole_pages(size)
    places = np.arange(0, max(1, file.stat().st_size - length), PAGE)
    offsets = np.random.Generator(np.random.PCG64(0)).choice(places, 1 << 14)
    rates = []
    with _direct(file) as descriptor:
        for _, in_flight in PIECES:
            rates.append(measure_reads(descriptor, offsets, length, in_flight, seconds)[0])
    return Limit(
        "disk, random",
        f"reads of {bytes_text(size)} past the page cache",
        max(rates) * size,
        max(rates),
    )


def host_to_device(device: torch.device, slot_bytes: int, pinned: bool, seconds: float = SECONDS) -> Limit:
    """Measure copies of slots from host memory to a device."""
    return _transfer(device, slot_bytes, pinned, True, seconds)


def device_to_host(device: torch.device, slot_bytes: int, pinned: bool, seconds: float = SECONDS) -> Limit:
    """Measure copies of slots from a device to host memory."""
    return _transfer(device, slot_bytes, pinned, False, seconds)


@dataclass(frozen=True)
class LowerCacheProbe:
    """Median time of single random 4 KiB reads past the page cache, and of a second pass over them."""

    first_s: float
    second_s: float

    @property
    def detected(self) -> bool:
        """True if the second pass was faster: a cache below this kernel was filled by the first."""
        return self.first_s > LOWER_CACHE_SPEEDUP * self.second_s

    @property
    def sentence(self) -> str:
        """Interpretation of the two times."""
        times = f"p50 {self.first_s * 1e6:.0f} µs, then {self.second_s * 1e6:.0f} µs at the same offsets"
        if self.detected:
            return (
                f"single 4 KiB reads past the page cache: {times}. A layer below this kernel (a hypervisor, "
                "a disk controller) caches reads: cold means cold for this kernel only"
            )
        return (
            f"single 4 KiB reads past the page cache: {times}; rereading was no faster, so "
            "no cache below this kernel was found (one that already held the data cannot be detected)"
        )


def probe_lower_cache(file: Path, reads: int = READS) -> LowerCacheProbe:
    """Time single random reads past the page cache, twice at the same offsets."""
    places = np.arange(0, max(1, file.stat().st_size - PAGE), PAGE)
    seed = time.time_ns()  # other offsets in each call, because these are cached afterwards
    offsets = np.random.Generator(np.random.PCG64(seed)).choice(places, reads).tolist()
    page = [touched_array(PAGE).data]
    medians = []
    with _direct(file) as descriptor:
        for _ in range(2):
            times = []
            for offset in offsets:
                before = time.perf_counter()
                os.preadv(descriptor, page, offset)
                times.append(time.perf_counter() - before)
            medians.append(statistics.median(times))
    return LowerCacheProbe(*medians)


@contextmanager
def _direct(file: Path) -> Iterator[int]:
    descriptor = open_direct(file)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def whole_pages(size: int) -> int:
    """Return a number of bytes rounded up to whole pages."""
    return -(-size // PAGE) * PAGE


def measure_reads(
    descriptor: int, offsets: npt.NDArray[np.int64], length: int, in_flight: int, seconds: float
) -> tuple[float, float]:
    """Read these offsets over and over; return reads per second and bytes per second."""
    queue, reads, bytes_read = ReadQueue(length, in_flight), 0, 0
    lengths = np.full(len(offsets), length)
    started = time.perf_counter()
    try:
        while time.perf_counter() - started < seconds:
            with closing(queue.read(descriptor, offsets, lengths)) as reading:
                for _, got in reading:
                    reads, bytes_read = reads + 1, bytes_read + len(got)
                    if time.perf_counter() - started > seconds:
                        break
        passed = time.perf_counter() - started
    finally:
        queue.close()
    return reads / passed, bytes_read / passed


def _transfer(device: torch.device, slot_bytes: int, pinned: bool, to_device: bool, seconds: float) -> Limit:
    """Measure back-to-back copies by the device's clock, after a warm-up of the link."""
    import torch

    from iobench.host.device import Accelerator, device_of

    device_api = device_of(device)
    assert isinstance(device_api, Accelerator), f"{device} is the host: nothing is copied to it"
    device_api.use()
    slot = device_api.memory(slot_bytes) if pinned else touched_array(slot_bytes)
    slot[:] = 1
    host, there = torch.from_numpy(slot), torch.ones(slot_bytes, dtype=torch.uint8, device=device)
    source, target = (host, there) if to_device else (there, host)
    chunk = min(max(CHUNK_BYTES // slot_bytes, MIN_COPIES), MAX_COPIES)

    def copy() -> Any:
        for _ in range(chunk):
            target.copy_(source, non_blocking=pinned)
        event = device_api.event()
        event.record(device_api.current_stream())
        return event

    keep_busy(copy, WARM_UP_S)
    device_api.synchronize()
    started = device_api.mark()
    chunks = keep_busy(copy, seconds)
    ended = device_api.mark()
    device_api.synchronize()
    rate = chunks * chunk * slot_bytes / ended.seconds_since(started)
    direction = HOST_TO_DEVICE if to_device else DEVICE_TO_HOST
    return Limit(direction, f"slots of {bytes_text(slot_bytes)}, {'pinned' if pinned else 'pageable'}", rate)


def keep_busy(submit: Callable[[], Any], seconds: float) -> int:
    """Call `submit` for about `seconds`, always before the device runs out of work; return how often.

    Waiting for each result would count the time in which the host wakes up as a slow link.
    """
    until, submitted, pending = time.perf_counter() + seconds, 0, deque[Any]()
    while not submitted or time.perf_counter() < until:
        pending.append(submit())
        submitted += 1
        if len(pending) > 2:
            pending.popleft().synchronize()
    return submitted
