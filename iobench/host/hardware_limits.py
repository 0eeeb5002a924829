"""The physical limits: what this disk, this memory and this device can do, whatever reads with them.

Each figure is the best of a few ways to get it, each tried for a moment: a limit is too low as
soon as something beats it.
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
from iobench.host.aio import ReadQueue, open_direct
from iobench.host.memory import PAGE, touched_array

if TYPE_CHECKING:
    import torch

SECONDS = 0.25  # for each way
PIECES = ((1 << 20, 8 << 20), (4 << 20, 64 << 20))  # bytes in a read and in flight
IN_TURN_BYTES = 64 << 20  # of slots that are filled in turn: a batch is used once, and leaves the caches
COPIED_BYTES = 512 << 20  # of a file, at most, from the page cache
READS = 1500  # single reads, to tell what is below the page cache
WARM_UP_S = 0.1  # in which a link that had nothing to do gets up to its speed
CHUNK_BYTES, LEAST_COPIES, MOST_COPIES = 32 << 20, 8, 256  # asked for at a time

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Limit:
    """One limit, in bytes per second; `reads_per_s` where single reads are the point.

    `definition` counts what the name has meant: figures of two definitions are not compared.
    """

    name: str
    how: str
    bytes_per_s: float
    reads_per_s: float | None = None


def sequential_read(file: Path, seconds: float = SECONDS) -> Limit:
    """The disk read in order past the page cache, with enough in flight."""
    size = file.stat().st_size
    rates = []
    with _direct(file) as descriptor:
        for piece, in_flight in PIECES:
            offsets = np.arange(0, size, min(piece, _pages(size)))
            rates.append(_reads_per_s(descriptor, offsets, piece, in_flight, seconds)[1])
    return Limit("disk", "in order, past the page cache", max(rates))


def random_read(file: Path, size: int, seconds: float = SECONDS) -> Limit:
    """The disk read at random in pieces that hold `size` bytes; only those count."""
    length = _pages(size)
    places = np.arange(0, max(1, file.stat().st_size - length), PAGE)
    offsets = np.random.Generator(np.random.PCG64(0)).choice(places, 1 << 14)
    rates = []
    with _direct(file) as descriptor:
        for _, in_flight in PIECES:
            rates.append(_reads_per_s(descriptor, offsets, length, in_flight, seconds)[0])
    return Limit(
        "disk, random", f"{bytes_text(size)} at random, past the page cache", max(rates) * size, max(rates)
    )


def page_cache_read(file: Path, slot_bytes: int, slots: int, threads: int, seconds: float = SECONDS) -> Limit:
    """What is in the page cache copied into slots, one after the other, by `threads` threads.

    Out of a map and by reads: whichever is faster. The file is read first as far as it is copied. There are
    as many slots as a loader goes around in, and at least IN_TURN_BYTES of them: a loader's batch is used
    before its memory is filled again, so that this memory is in no processor's cache by then. (Definition 2;
    1 went around in the loader's few slots alone, which for batches of 128 KiB never left the caches.)
    """
    size = min(file.stat().st_size, COPIED_BYTES)
    ring = _ring(slot_bytes, max(slots, threads, IN_TURN_BYTES // _pages(slot_bytes)))
    step = min(slot_bytes, size)
    starts = range(0, size - step + 1, step)
    mapped = np.memmap(file, np.uint8, "r", shape=(size,))
    with open(file, "rb", buffering=0) as opened:
        descriptor = opened.fileno()
        for start in range(0, size, page_cache.PIECE_BYTES):
            os.preadv(descriptor, [bytearray(min(page_cache.PIECE_BYTES, size - start))], start)

        def copy(turn: int) -> None:
            start, slot = starts[turn % len(starts)], ring[turn % len(ring)]
            for low in range(0, step, page_cache.PIECE_BYTES):
                high = min(low + page_cache.PIECE_BYTES, step)
                slot[low:high] = mapped[start + low : start + high]

        def read(turn: int) -> None:
            os.preadv(descriptor, [ring[turn % len(ring)][:step].data], starts[turn % len(starts)])

        rates = [_calls_per_s(way, threads, seconds) * step for way in (copy, read)]
    how = f"{_into(slot_bytes, threads)}, {bytes_text(len(ring) * slot_bytes)} in turn"
    return Limit("page cache", how, max(rates))


def _ring(slot_bytes: int, slots: int) -> list[Bytes]:
    """So many slots of memory that has been touched, each from the beginning of a page on."""
    stride = _pages(slot_bytes)
    memory = touched_array(stride * slots)
    return [memory[start : start + slot_bytes] for start in range(0, stride * slots, stride)]


def memory_copy(slot_bytes: int, slots: int, threads: int, seconds: float = SECONDS) -> Limit:
    """Memory copied from one ring of slots into another, by `threads` threads."""
    source, target = ([touched_array(slot_bytes) for _ in range(max(slots, threads))] for _ in range(2))

    def copy(turn: int) -> None:
        target[turn % len(target)][:] = source[turn % len(source)]

    return Limit("memory copy", _into(slot_bytes, threads), _calls_per_s(copy, threads, seconds) * slot_bytes)


def host_to_device(device: torch.device, slot_bytes: int, pinned: bool, seconds: float = SECONDS) -> Limit:
    """Slots of host memory copied to a device."""
    return _transfer(device, slot_bytes, pinned, True, seconds)


def device_to_host(device: torch.device, slot_bytes: int, pinned: bool, seconds: float = SECONDS) -> Limit:
    """The way back."""
    return _transfer(device, slot_bytes, pinned, False, seconds)


@dataclass(frozen=True)
class LowerCacheProbe:
    """The median time of single random 4 KiB reads past the page cache, and of the same ones once more."""

    first_s: float
    second_s: float

    @property
    def seen(self) -> bool:
        """Whether a cache below this kernel was seen to fill."""
        return self.first_s > LOWER_CACHE_SPEEDUP * self.second_s

    @property
    def sentence(self) -> str:
        """What that says about caches below this kernel."""
        times = f"{self.first_s * 1e6:.0f} µs, then {self.second_s * 1e6:.0f} µs at the same places"
        if self.seen:
            return (
                f"single 4 KiB reads past the cache: p50 {times}: a layer below this kernel (a host, "
                "a controller) keeps what was read, so cold means cold for this kernel only"
            )
        return (
            f"single 4 KiB reads past the cache: p50 {times}: no sign of a cache below that fills; "
            "if there is one, it had kept these places before"
        )


def probe_lower_cache(file: Path, reads: int = READS) -> LowerCacheProbe:
    """How long single random reads past the page cache take, twice over the same places."""
    places = np.arange(0, max(1, file.stat().st_size - PAGE), PAGE)
    seed = time.time_ns()  # other places each time, because these are cached afterwards
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


def _into(slot_bytes: int, threads: int) -> str:
    return f"into slots of {bytes_text(slot_bytes)}, {counted(threads, 'thread')}"


@contextmanager
def _direct(file: Path) -> Iterator[int]:
    descriptor = open_direct(file)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _reads_per_s(
    descriptor: int, offsets: npt.NDArray[np.int64], length: int, in_flight: int, seconds: float
) -> tuple[float, float]:
    """Reads and bytes per second of reading these places over and over."""
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


def _calls_per_s(call: Callable[[int], None], threads: int, seconds: float) -> float:
    """How often `threads` threads together get through a call, each call with a number of its own."""
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


def _transfer(device: torch.device, slot_bytes: int, pinned: bool, to_device: bool, seconds: float) -> Limit:
    """Copies one behind the other, timed by the device's clock, after the link has woken up."""
    import torch

    from iobench.host.device import Accelerator, device_of

    device_api = device_of(device)
    assert isinstance(device_api, Accelerator), f"{device} is the host: nothing is copied to it"
    device_api.use()
    slot = device_api.memory(slot_bytes) if pinned else touched_array(slot_bytes)
    slot[:] = 1
    host, there = torch.from_numpy(slot), torch.ones(slot_bytes, dtype=torch.uint8, device=device)
    source, target = (host, there) if to_device else (there, host)
    chunk = min(max(CHUNK_BYTES // slot_bytes, LEAST_COPIES), MOST_COPIES)

    def copy() -> Any:
        for _ in range(chunk):
            target.copy_(source, non_blocking=pinned)
        event = device_api.event()
        event.record(device_api.current_stream())
        return event

    _never_idle(copy, WARM_UP_S)
    device_api.synchronize()
    started = device_api.mark()
    chunks = _never_idle(copy, seconds)
    ended = device_api.mark()
    device_api.synchronize()
    rate = chunks * chunk * slot_bytes / ended.seconds_since(started)
    direction = "host to device" if to_device else "device to host"
    return Limit(direction, f"slots of {bytes_text(slot_bytes)}, {'pinned' if pinned else 'pageable'}", rate)


def _never_idle(ask: Callable[[], Any], seconds: float) -> int:
    """How often a device was asked within about so many seconds, always before it ran out of work.

    Waiting for all of it would count the host's own waking up as a slow link.
    """
    until, asked, under_way = time.perf_counter() + seconds, 0, deque[Any]()
    while not asked or time.perf_counter() < until:
        under_way.append(ask())
        asked += 1
        if len(under_way) > 2:
            under_way.popleft().synchronize()
    return asked
