"""Hardware limits, independent of a loader: disk, page cache, gathers of rows, copies, link to a device.

Each limit is the best of a few methods, each run for a moment. A limit that something exceeds is too low.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from iobench.base.thresholds import LOWER_CACHE_SPEEDUP
from iobench.base.units import bytes_text, counted
from iobench.host import page_cache
from iobench.host.io_engines import ReadQueue, open_direct
from iobench.host.maps import GuardedMap
from iobench.host.memory import PAGE, Bytes, touched_array, whole_pages

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
        "disk, random", f"reads of {bytes_text(size)} past the page cache", max(rates) * size, max(rates)
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


def measure_reads(
    descriptor: int, offsets: npt.NDArray[np.int64], length: int, in_flight: int, seconds: float
) -> tuple[float, float]:
    """Read these offsets over and over; return reads per second and bytes per second."""
    queue, reads, bytes_read = ReadQueue(length, in_flight), 0, 0
    lengths = np.full(len(offsets), length)
    started = time.perf_counter()
    try:
        passed = 0.0
        while passed < seconds:  # one read at least
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


PIECE_BYTES = 1 << 20
OPENINGS = 20


def plain_reads(file: Path, seconds: float = SECONDS) -> Limit:
    """Measure plain reads in order, one after the other; ColdCacheUnavailable if the file stays in memory."""
    page_cache.evict([file])
    buffer = touched_array(PIECE_BYTES).data
    with open(file, "rb", buffering=0) as opened:
        rate = _rate(lambda start: opened.readinto(buffer), file, seconds)
    return Limit("disk", "in order, through the page cache", rate)


def mapped_reads(file: Path, seconds: float = SECONDS) -> Limit:
    """Measure copies in order out of a memory map; ColdCacheUnavailable if the file stays in memory."""
    page_cache.evict([file])
    buffer, mapped = touched_array(PIECE_BYTES), GuardedMap([file])

    def copy(start: int) -> int:
        piece = mapped.bytes[start : start + PIECE_BYTES]
        buffer[: len(piece)] = piece
        mapped.guard.check()
        return len(piece)

    return Limit("disk", "in order, through a memory map", _rate(copy, file, seconds))


def opening_s(file: Path) -> float:
    """Return the median time in seconds to open a file, look at its size and close it."""
    taken = []
    for _ in range(OPENINGS):
        began = time.perf_counter()
        with open(file, "rb") as opened:
            opened.seek(0, 2)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def _rate(read: Callable[[int], int], file: Path, seconds: float) -> float:
    """Return the bytes per second of `read`, called with the start of each piece, which returns its bytes."""
    began, passed, done, size = time.perf_counter(), 0.0, 0, file.stat().st_size
    while done < size and passed < seconds:  # one read at least
        done += read(done)
        passed = time.perf_counter() - began
    return done / (time.perf_counter() - began)


IN_TURN_BYTES = 64 << 20  # minimum size of the ring of slots: a batch is used once and leaves the CPU caches
COPIED_BYTES = 512 << 20  # maximum part of a file that is copied from the page cache


def page_cache_read(file: Path, slot_bytes: int, slots: int, threads: int, seconds: float = SECONDS) -> Limit:
    """Measure copies from the page cache into a ring of slots by `threads` threads.

    The result is the faster of copies out of a map and plain reads. The copied part of the file is read
    first. The ring has as many slots as the loader uses, and at least IN_TURN_BYTES: a loader's batch is used
    before its memory is filled again, so that this memory has left the CPU caches by then. The loader's few
    slots alone, with batches of 128 KiB, would never leave them.
    """
    size = min(file.stat().st_size, COPIED_BYTES)
    ring = slots_in_turn(slot_bytes, max(slots, threads, IN_TURN_BYTES // whole_pages(slot_bytes)))
    step = min(slot_bytes, size)
    starts = range(0, size - step + 1, step)
    mapped = np.memmap(file, np.uint8, "r", shape=(size,))
    with open(file, "rb", buffering=0) as opened:
        descriptor = opened.fileno()
        for start in range(0, size, page_cache.PIECE_BYTES):
            os.preadv(descriptor, [bytearray(min(page_cache.PIECE_BYTES, size - start))], start)

        def copy(number: int) -> None:
            start, slot = starts[number % len(starts)], ring[number % len(ring)]
            for low in range(0, step, page_cache.PIECE_BYTES):
                high = min(low + page_cache.PIECE_BYTES, step)
                slot[low:high] = mapped[start + low : start + high]

        def read(number: int) -> None:
            os.preadv(descriptor, [ring[number % len(ring)][:step].data], starts[number % len(starts)])

        rates = [calls_per_s(way, threads, seconds) * step for way in (copy, read)]
    whole = f" ({bytes_text(len(ring) * slot_bytes)} in all)"
    return Limit("page cache", _into(slot_bytes, threads, whole), max(rates))


def gather_rows(
    file: Path,
    row_bytes: int,
    window_rows: int | None,
    slot_bytes: int,
    threads: int,
    seconds: float = SECONDS,
) -> Limit:
    """Measure gathers of rows from the page cache into a ring of slots by `threads` threads.

    This is the work that no loader of shuffled rows can avoid. The rows lie side by side in a map, of at most
    COPIED_BYTES; their order is a permutation of all of them, or one within each `window_rows` rows. The
    result is the faster of numpy.take and torch.index_select.
    """
    import torch

    size = min(file.stat().st_size, COPIED_BYTES)
    row_bytes = min(row_bytes, size)
    rows = size // row_bytes
    step = min(max(1, slot_bytes // row_bytes), rows)
    ring = slots_in_turn(step * row_bytes, max(threads, IN_TURN_BYTES // whole_pages(slot_bytes)))
    slots = [slot.reshape(step, row_bytes) for slot in ring]
    source = np.memmap(file, np.uint8, "c", shape=(rows, row_bytes))
    source.max()  # reads the file and maps its pages
    generator, order = np.random.Generator(np.random.PCG64(0)), np.arange(rows)
    for start in range(0, rows, window_rows or rows):
        generator.shuffle(order[start : start + (window_rows or rows)])
    pieces = [order[start : start + step] for start in range(0, rows - step + 1, step)]
    memory = torch.from_numpy(source)
    indices, tensors = ([*map(torch.from_numpy, arrays)] for arrays in (pieces, slots))

    def take(number: int) -> None:
        np.take(source, pieces[number % len(pieces)], 0, out=slots[number % len(slots)], mode="clip")

    def select(number: int) -> None:
        torch.index_select(memory, 0, indices[number % len(pieces)], out=tensors[number % len(slots)])

    rates = [calls_per_s(way, threads, seconds) * step * row_bytes for way in (take, select)]
    return Limit("gather", f"rows of {bytes_text(row_bytes)} {_into(slot_bytes, threads)}", max(rates))


def slots_in_turn(slot_bytes: int, slots: int) -> list[Bytes]:
    """Return `slots` page-aligned slots of touched memory."""
    stride = whole_pages(slot_bytes)
    memory = touched_array(stride * slots)
    return [memory[start : start + slot_bytes] for start in range(0, stride * slots, stride)]


def memory_copy(slot_bytes: int, slots: int, threads: int, seconds: float = SECONDS) -> Limit:
    """Measure copies from one ring of slots into another by `threads` threads."""
    source, target = ([touched_array(slot_bytes) for _ in range(max(slots, threads))] for _ in range(2))

    def copy(number: int) -> None:
        target[number % len(target)][:] = source[number % len(source)]

    return Limit("memory copy", _into(slot_bytes, threads), calls_per_s(copy, threads, seconds) * slot_bytes)


def _into(slot_bytes: int, threads: int, whole: str = "") -> str:
    return f"into {bytes_text(slot_bytes)} buffers{whole}, {counted(threads, 'thread')}"


def calls_per_s(call: Callable[[int], None], threads: int, seconds: float) -> float:
    """Return the calls per second of `threads` threads together, each call with its own number."""
    for turn in range(threads):
        call(turn)
    until = time.perf_counter() + seconds

    def work(first: int) -> tuple[int, float]:
        started, done = time.perf_counter(), 0
        for turn in count(first, threads):
            call(turn)
            done += 1
            if time.perf_counter() > until:
                break
        return done, time.perf_counter() - started

    with ThreadPoolExecutor(threads) as pool:
        return sum(done / passed for done, passed in pool.map(work, range(threads)))
