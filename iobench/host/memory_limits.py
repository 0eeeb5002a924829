"""Limits of memory: bandwidth of the page cache, of gathers of rows from it, and of copies in memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt

from iobench.base.units import bytes_text, counted
from iobench.host import page_cache
from iobench.host.hardware_limits import SECONDS, Limit, whole_pages
from iobench.host.memory import Bytes, touched_array

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
    order = _shuffled(rows, window_rows)
    pieces = [order[start : start + step] for start in range(0, rows - step + 1, step)]
    memory = torch.from_numpy(source)
    indices, tensors = ([*map(torch.from_numpy, arrays)] for arrays in (pieces, slots))

    def take(number: int) -> None:
        np.take(source, pieces[number % len(pieces)], 0, out=slots[number % len(slots)], mode="clip")

    def select(number: int) -> None:
        torch.index_select(memory, 0, indices[number % len(pieces)], out=tensors[number % len(slots)])

    rates = [calls_per_s(way, threads, seconds) * step * row_bytes for way in (take, select)]
    return Limit("gather", f"rows of {bytes_text(row_bytes)} {_into(slot_bytes, threads)}", max(rates))


def _shuffled(rows: int, window_rows: int | None) -> npt.NDArray[np.int64]:
    generator, order = np.random.Generator(np.random.PCG64(0)), np.arange(rows)
    for start in range(0, rows, window_rows or rows):
        generator.shuffle(order[start : start + (window_rows or rows)])
    return order


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
