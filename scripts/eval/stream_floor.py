"""Compare StreamLoader from warm memory with the plainest loops that do the same copies, in MB/s.

Prepares rows of 512 B and 4 KiB (200 MB each) and of 150 KB (600 MB at scale 1) in the data folder. The loops
copy batches out of a map into memory that is used again: torch.index_select and memcpy by a thread per core,
numpy.take and slices by one thread. That memory is one batch per thread, which may stay in the processor's
caches, or as much as StreamLoader's batches take (KEPT_BYTES), so that a consumer may keep some. Rows of the
loops are drawn beforehand, those of StreamLoader within its epochs.
The other contenders are tensordict's memory map (memmap · native) and DataLoader with whole batches.

Each row has the time to the first batch and the minor page faults of StreamLoader's later epochs, as medians.
`huge` measures these for 20 GB: a sparse file, of which one rank of many reads its share.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from time import perf_counter
from typing import Any
from unittest import mock

import numpy as np
import torch

import iobench
from eval import harness
from eval.harness import Rate, Row, Trials, epoch_rate
from iobench import Manifest, StreamLoader, formats
from iobench.base.units import bytes_text
from iobench.dataset.opener import Opener
from iobench.formats import Field, Rows, Schema
from iobench.host import page_cache
from iobench.host.memory import touched_array
from iobench.loading.batching import Batching
from iobench.loading.order import ORDERS
from iobench.stream.backend_selection import select_backend
from iobench.stream.gather import one_thread
from iobench.stream.options import StreamOptions
from iobench.stream.pipeline import Pipeline
from iobench.stream.transfer import transfer_to

OPTIONS = {"rounds": (9, harness.ROUNDS), "scale": (1.0, "of the datasets' size")}
SAMPLES = {  # bytes of a sample, of all samples, and batch size
    "512B": (512, 2e8, 1024),
    "4KiB": (4 << 10, 2e8, 256),
    "150KB": (3 * 224 * 224, 6e8, 128),
}
CORES = len(os.sched_getaffinity(0))
HUGE_ROWS, HUGE_RANKS = 40_000_000, 2000  # of 512 bytes
KEPT_BYTES = 40 << 20
EXPECTED = {"random": 0.8, "block": 0.8, "sequential": 0.9}

Epochs = Callable[[], Iterator[Any]]


def trials(options: argparse.Namespace) -> Trials:
    shown = {
        f"{size}-{order}": partial(compare, options, size, order) for size in SAMPLES for order in ORDERS
    }
    return {**shown, "huge": partial(huge, options)}


def compare(options: argparse.Namespace, size: str, order: str) -> Iterator[Row]:
    """Compare StreamLoader with every loop for rows of one size in one order."""
    manifest, batch_size = dataset(options, size)
    for variant in ("npy", "memmap"):
        page_cache.warm(manifest.files_of(variant))
    batching = Batching(order, batch_size)
    loader = StreamLoader(manifest.root, format="npy", batch_size=batch_size, order=order)
    later = LaterEpochs(lambda: iter(loader), options.rounds)
    contenders: dict[str, Rate] = {"stream": lambda _: manifest.schema.logical_bytes / later.measure()}
    contenders |= loops(manifest, batching)
    row_order = batching.row_order(manifest.schema)
    contenders["memmap · native"] = epoch_rate(manifest, "memmap", "native", row_order)
    contenders["dataloader:fetch=batch"] = epoch_rate(manifest, "npy", "dataloader:fetch=batch", row_order)
    rates = harness.medians(contenders, options.rounds)
    loader.close()
    for other in (name for name in contenders if name != "stream"):
        yield {**harness.against(rates, "stream", other, EXPECTED[order]), **later.medians}


def dataset(options: argparse.Namespace, size: str) -> tuple[Manifest, int]:
    """Prepare the rows of one size, unless they are there; return them and the batch size."""
    sample_bytes, total, batch_size = SAMPLES[size]
    source = iobench.Synthetic(int(total * options.scale), (sample_bytes,), dtype="uint8")
    name = f"floor-{size}-{options.scale}"
    return iobench.prepare(source, ["npy", "memmap"], data_dir=options.data_dir, name=name)[0], batch_size


def loops(manifest: Manifest, batching: Batching) -> dict[str, Rate]:
    """Return loops over the batches of an epoch that copy from a map into reused memory."""
    stored = np.load(manifest.files_of("npy")[0], mmap_mode="c")
    stored.max()  # maps its pages
    source, schema = np.asarray(stored), manifest.schema
    memory = torch.from_numpy(source)
    drawn = batching.row_order(schema).batches(schema.samples, 0)
    drawn.draw()
    batches = list(drawn)
    batch_bytes = batching.batch_size * schema.sample_bytes
    kept = max(CORES, KEPT_BYTES // batch_bytes)
    slots = [touched_array(batch_bytes).reshape(batching.batch_size, -1) for _ in range(kept)]
    tensors = [torch.from_numpy(slot) for slot in slots]

    def select(slot: int, rows: Rows) -> None:
        if isinstance(rows, slice):
            tensors[slot][: rows.stop - rows.start].copy_(memory[rows])
        else:
            torch.index_select(memory, 0, torch.from_numpy(rows), out=tensors[slot][: len(rows)])

    def take(slot: int, rows: Rows) -> None:
        if isinstance(rows, slice):
            slots[slot][: rows.stop - rows.start] = source[rows]
        else:
            np.take(source, rows, 0, out=slots[slot][: len(rows)], mode="clip")

    names = ("copy_", "slices") if isinstance(batches[0], slice) else ("index_select", "take")
    ways = {
        f"{names[0]}, {CORES} threads": (select, CORES, CORES),
        f"{names[0]}, {CORES} threads, {bytes_text(KEPT_BYTES)}": (select, CORES, kept),
        f"{names[1]}, 1 thread": (take, 1, 1),
    }
    size = schema.logical_bytes
    return {name: partial(rate_of, copy, batches, size, *of) for name, (copy, *of) in ways.items()}


def rate_of(
    copy: Callable[[int, Rows], None], batches: list[Rows], size: int, threads: int, slots: int, _: int
) -> float:
    """Return the bytes per second of a loop over batches, `size` bytes in all, into so many slots in turn."""

    def work(thread: int) -> None:
        with one_thread():
            for number in range(thread, len(batches), threads):
                copy(number % slots, batches[number])

    with ThreadPoolExecutor(threads) as pool:
        return size / harness.timed(lambda: list(pool.map(work, range(threads))))[1]


def huge(options: argparse.Namespace) -> Iterator[Row]:
    """Measure the start of later epochs of 20 GB in random order."""
    schema = Schema(HUGE_ROWS, (Field("x", (512,), "uint8"),))
    folder = options.folder / "npy"
    folder.mkdir()
    np.lib.format.open_memmap(folder / "x.npy", "w+", np.uint8, (HUGE_ROWS, 512))
    order = Batching("random", 1024).row_order(schema, 0, HUGE_RANKS)
    with mock.patch.object(page_cache, "residency", return_value=1.0):  # holes are in no page cache
        opener = Opener(formats.parse("npy"), folder, schema)
        backend = select_backend(opener, schema, StreamOptions(direct=False), 1024)
        with closing(Pipeline(backend, schema, order, transfer_to(torch.device("cpu")))) as pipeline:

            def epoch(number: int) -> Iterator[Any]:
                assert pipeline.is_current()
                yield from pipeline.run(order.batches(HUGE_ROWS, number))

            later = LaterEpochs(partial(epoch, 0), options.rounds)
            yield {"contender": "stream", **later.medians}


class LaterEpochs:
    """Epochs of one loader, and the medians of some that follow each other, without the first one.

    Other contenders between these would change what is in the CPU caches.
    """

    def __init__(self, epochs: Epochs, count: int) -> None:
        self._epochs = epochs
        self._first_s, self._faults = list[float](), list[int]()
        for _ in range(1 + count):
            self.measure()
        first_ms = 1e3 * statistics.median(self._first_s[1:])
        self.medians = {"first batch ms": first_ms, "minor faults": statistics.median(self._faults[1:])}

    def measure(self) -> float:
        """Read one epoch and return its seconds."""
        faults, began = minor_faults(), perf_counter()
        batches = self._epochs()
        next(batches)
        self._first_s.append(perf_counter() - began)
        for _ in batches:
            pass
        elapsed_s = perf_counter() - began
        self._faults.append(minor_faults() - faults)
        return elapsed_s


def minor_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
