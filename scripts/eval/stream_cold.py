"""Compare StreamLoader from a cold disk with plain loops over the same batches, in MB/s.

Prepares samples of 512 B (38 MB) and of 150 KB (900 MB; 6 GB, of which 3 GB fit into memory: this process
takes the rest of it) in the data folder. The contenders are StreamLoader past the page cache, through it and
by default, `native`, a loop that copies slices or rows of a map into memory that is used again, and
DataLoader with whole batches. Each epoch runs in a forked process, after an epoch of few samples and
an eviction; its time begins before the loader is opened. `two` adds a second epoch, for data that fit.

--read-ahead-kib sets the disk's readahead for the trials; it needs root, and is set back at the end.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

import iobench
from eval import harness
from eval.harness import Row, Trials
from iobench import Manifest, StreamLoader
from iobench.bench.rounds import interleaved
from iobench.host import disk, page_cache, usable_memory
from iobench.host.memory import touched_array, touched_map
from iobench.loading import loaders
from iobench.loading.batching import Batching
from iobench.loading.loaders import Job
from iobench.loading.order import ORDERS

OPTIONS = {
    "rounds": (5, harness.ROUNDS),
    "read_ahead_kib": ([], "readahead of the disk in KiB; default: as it is"),
    "format": ("npy", "the stored format"),
    "contenders": ([], "only these contenders"),
}
SAMPLES = {  # bytes of a sample, of all samples, and batch size
    "38MB": (512, 4e7, 256),
    "900MB": (3 * 224 * 224, 9e8, 64),
    "beyond": (3 * 224 * 224, 6e9, 64),
    "two": (3 * 224 * 224, 9e8, 64),
}
LEFT_BYTES = 3e9  # of memory, for `beyond`
EXPECTED = 0.92
STREAM = {"default": None, "direct": True, "cached": False}
OTHERS = {"native": "native", "dataloader": "dataloader:fetch=batch"}
CONTENDERS = (*STREAM, *OTHERS, "map")
Epoch = Callable[[], Iterator[Any]]


def trials(options: argparse.Namespace) -> Trials:
    settings = [int(one) for one in options.read_ahead_kib] or [0]
    return {
        f"{size}-{order}-{kib}": partial(compare, options, size, order, kib)
        for size in SAMPLES
        for kib in settings
        for order in ORDERS
    }


def compare(options: argparse.Namespace, size: str, order: str, read_ahead_kib: int) -> Iterator[Row]:
    """Yield the median rate of each contender, and its ratio to the best."""
    sample_bytes, total, batch_size = SAMPLES[size]
    manifest = prepared(options, sample_bytes, int(total))
    few = prepared(options, sample_bytes, 3 * batch_size * sample_bytes)
    batching = Batching(order, batch_size)
    names = [one for one in CONTENDERS if one in options.contenders or not options.contenders]
    seen: dict[str, list[tuple[float, float]]] = {one: [] for one in names}
    epochs = 2 if size == "two" else 1
    with read_ahead(manifest.files_of(options.format)[0], read_ahead_kib), memory_left(size == "beyond"):
        for _, one in interleaved(names, lambda done: done < options.rounds):
            epoch = partial(epoch_of, one, variant=options.format, batching=batching)
            seen[one].append(apart(partial(timed, epoch, manifest, few, options.format, epochs)))
    bytes_read = epochs * manifest.schema.logical_bytes
    rates = {one: bytes_read / statistics.median(total_s for _, total_s in seen[one]) for one in names}
    best = max(rates, key=rates.__getitem__)
    for one in names:
        first_ms = 1e3 * statistics.median(first_s for first_s, _ in seen[one])
        figures = {"rate": rates[one] / 1e6, "of best": rates[one] / rates[best], "first batch ms": first_ms}
        yield {"contender": one, **figures, "expected": EXPECTED if one == "default" else None}


def prepared(options: argparse.Namespace, sample_bytes: int, total: int) -> Manifest:
    """Prepare samples, unless they are there."""
    source = iobench.Synthetic(total, (sample_bytes,), dtype="uint8")
    name = f"cold-{sample_bytes}-{total}"
    return iobench.prepare(source, [options.format], data_dir=options.data_dir, name=name)[0]


def timed(
    of: Callable[[Manifest], Epoch], manifest: Manifest, few: Manifest, variant: str, epochs: int
) -> tuple[float, float]:
    """Evict the data, and return the seconds to the first batch and to the end of the epochs."""
    for _ in of(few)():  # imports, and what else only a first epoch does
        pass
    page_cache.establish("cold", manifest.files_of(variant), manifest.schema.logical_bytes)
    epoch = of(manifest)
    began = perf_counter()
    batches = epoch()
    next(batches)
    first_s = perf_counter() - began
    for _ in batches:
        pass
    for _ in range(1, epochs):
        for _ in epoch():
            pass
    return first_s, perf_counter() - began


def epoch_of(contender: str, manifest: Manifest, variant: str, batching: Batching) -> Epoch:
    """Return a function that starts an epoch, opening the loader if it is the first."""
    if contender in STREAM:
        settings = vars(batching).copy()
        loader = StreamLoader(manifest.root, format=variant, direct=STREAM[contender], **settings)
        return lambda: iter(loader)
    order = batching.row_order(manifest.schema)
    if contender == "map":
        return partial(map_loop, manifest, variant, order)
    job = Job(manifest.opener(variant), order)
    opened: list[Any] = []

    def epoch() -> Iterator[Any]:
        if not opened:
            opened.append(loaders.parse(OTHERS[contender]).on("cpu").open(job))
        yield from opened[0].epoch(order.batches(manifest.schema.samples, 0))

    return epoch


def map_loop(manifest: Manifest, variant: str, order: Any) -> Iterator[Any]:
    """Copy batches out of a map, into memory that is used again."""
    source = np.load(manifest.files_of(variant)[0], mmap_mode="r").view(np.ndarray)
    slot = touched_array(order.batch_size * manifest.schema.sample_bytes).reshape(order.batch_size, -1)
    for rows in order.batches(manifest.schema.samples, 0):
        if isinstance(rows, slice):
            batch = slot[: rows.stop - rows.start]
            batch[:] = source[rows]
        else:
            batch = slot[: len(rows)]
            np.take(source, rows, 0, out=batch, mode="clip")
        yield torch.from_numpy(batch)


def apart(work: Callable[[], Any]) -> Any:
    """Return the result of a function, called in a forked process."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(work()))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        process.join()


@contextmanager
def read_ahead(file: Path, kib: int) -> Iterator[None]:
    """Set the readahead of the disk under a file, unless it is 0; afterwards set it back."""
    setting = disk.block_device(file) / "queue" / "read_ahead_kb"
    before = setting.read_text()
    try:
        if kib:
            setting.write_text(str(kib))
        yield
    finally:
        setting.write_text(before)


@contextmanager
def memory_left(limited: bool) -> Iterator[None]:
    """Take memory until LEFT_BYTES are free; if memory gets short, this process ends first."""
    if not limited:
        yield
        return
    score = Path("/proc/self/oom_score_adj")
    before = score.read_text()
    score.write_text("1000")
    taken = touched_map(int(usable_memory.free_memory() - LEFT_BYTES))
    try:
        yield
    finally:
        taken.close()
        score.write_text(before)
