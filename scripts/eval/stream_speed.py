"""Compare StreamLoader with limits of the hardware, fio, DataLoader and other loaders, in MB/s.

The trials with a cold page cache need fio (Debian: apt install fio), and root or sudo, which drops the cache.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

import iobench
from eval import harness
from eval.harness import Rate, Row, Trials, against, epoch_rate, fio
from eval.harness_floor import floor
from iobench import Manifest, StreamLoader, StreamOptions
from iobench.dataset.sources import GeneratedLengths
from iobench.formats import Field
from iobench.host import hardware_limits, page_cache, process_counters
from iobench.loading.batching import BLOCK_BYTES, WINDOW_BYTES, blocks_of
from iobench.loading.order import Order

OPTIONS = {"rounds": (5, harness.ROUNDS), "scale": (1.0, "of the datasets' size")}
FORMATS = ["npy", "memmap", "hdf5:chunk_bytes=0", "lmdb"]
SAMPLES = {"images": ("uint8", (3, 224, 224), 2e9), "rows": ("float32", (128,), 3e8)}
CORES = len(os.sched_getaffinity(0))
DIRECT = {"direct": "stream:direct=true", "cached": "stream:direct=false"}
SEQUENTIAL, RANDOM = Order("sequential", 128), Order("random", 128)
SMALL, OF_TOKENS = Order("random", 1024), Order("random", 64)


def trials(options: argparse.Namespace) -> Trials:
    works = (
        *(warm_large, warm_small, cold_sequential, cold_random_large, cold_random_small, block),
        *(encoded, tokens, documents, own_cost),
    )
    return {work.__name__: partial(work, options) for work in works}


def dataset(options: argparse.Namespace, name: str) -> Manifest:
    """Prepare the images or rows, unless they are there."""
    dtype, shape, size = SAMPLES[name]
    source = iobench.Synthetic(int(size * options.scale), shape, dtype=dtype)
    return iobench.prepare(source, FORMATS, data_dir=options.data_dir, name=f"{name}-{options.scale}")[0]


def best(rates: Mapping[str, float], start: str) -> str:
    """Return the fastest contender whose name starts with this text."""
    return max((name for name in rates if name.startswith(start)), key=rates.__getitem__)


def warm_large(options: argparse.Namespace) -> Iterator[Row]:
    """Compare 150 KB samples in batches of 128 with the page cache limit and with DataLoader."""
    images = dataset(options, "images")
    slot, file = 128 * images.schema.sample_bytes, images.files_of("npy")[0]
    for order in (RANDOM, SEQUENTIAL):
        contenders: dict[str, Rate] = {
            f"page cache into slots, {threads} threads": lambda number, threads=threads: (
                hardware_limits.page_cache_read(file, slot, 5, threads).bytes_per_s
            )
            for threads in {1, CORES}
        }
        for loader in ("stream", *dataloaders("sample"), *dataloaders("batch")):
            contenders[loader] = epoch_rate(images, "npy", loader, order)
        rates = harness.medians(contenders, options.rounds)
        for other, expected in (("page cache", 0.9), ("dataloader", 2)):
            yield {"work": f"150 KB, {order.kind}", **against(rates, "stream", best(rates, other), expected)}


def dataloaders(fetch: str) -> list[str]:
    """Return DataLoader with no worker to one for each core."""
    return [f"dataloader:fetch={fetch},num_workers={workers}" for workers in range(CORES + 1)]


def warm_small(options: argparse.Namespace) -> Iterator[Row]:
    """Compare 512-byte rows in batches of 1024, random order, with other loaders."""
    rows = dataset(options, "rows")
    others = {"dataloader": 20, "dataloader:fetch=batch": 5, "native": 6}
    contenders = {one: epoch_rate(rows, "memmap", one, SMALL) for one in ("stream", *others)}
    rates = harness.medians(contenders, options.rounds)
    for other, expected in others.items():
        yield {"work": "512 B, random", **against(rates, "stream", other, expected)}


def cold_sequential(options: argparse.Namespace) -> Iterator[Row]:
    """Compare cold sequential reads, direct and through the page cache, with fio."""
    images = dataset(options, "images")
    file = images.files_of("npy")[0]
    for variant in FORMATS[:3]:
        contenders = {
            "fio 1M, depth 32": fio(file, "read", 1 << 20, 32),
            "iobench's limit": lambda number: hardware_limits.sequential_read(file).bytes_per_s,
        }
        for way, loader in DIRECT.items():
            contenders[way] = epoch_rate(images, variant, loader, SEQUENTIAL, "cold")
        rates = harness.medians(contenders, options.rounds)
        for one, other, expected in (
            *((way, "fio 1M, depth 32", 0.95) for way in DIRECT),
            ("direct", "iobench's limit", 0.9),
        ):
            yield {"work": f"cold, sequential, {variant}", **against(rates, one, other, expected)}


def cold_random_large(options: argparse.Namespace) -> Iterator[Row]:
    """Compare cold random reads of 150 KB samples with fio."""
    images = dataset(options, "images")
    name = "fio 148k, depth 32"
    contenders = {name: fio(images.files_of("npy")[0], "randread", 148 << 10, 32)}
    for way, loader in DIRECT.items():
        contenders[way] = epoch_rate(images, "npy", loader, RANDOM, "cold")
    rates = harness.medians(contenders, options.rounds)
    for way in DIRECT:
        yield {"work": "cold, random, 150 KB", **against(rates, way, name, 0.9)}


def cold_random_small(options: argparse.Namespace) -> Iterator[Row]:
    """Compare cold random reads of 512-byte rows with fio, in 1000 rows/s: direct for 200 batches."""
    rows = dataset(options, "rows")
    name, size = "fio 4k, depth 32 (reads)", rows.schema.sample_bytes
    cached = epoch_rate(rows, "npy", DIRECT["cached"], SMALL, "cold")
    page = fio(rows.files_of("npy")[0], "randread", 4096, 32)

    def direct(number: int) -> float:
        batches = islice(small_batches(rows, number, direct=True), 200)
        count, elapsed_s = harness.timed(lambda: sum(len(batch["x"]) for batch in batches))
        return count / elapsed_s

    contenders = {name: lambda n: page(n) / 4096, "direct": direct, "cached": lambda n: cached(n) / size}
    rates = harness.medians(contenders, options.rounds)
    for way in DIRECT:
        yield {"work": "cold, random, 512 B, k rows/s", **against(rates, way, name, 0.9, 1e3)}


def small_batches(rows: Manifest, seed: int, direct: bool) -> Iterator[Any]:
    """Open a StreamLoader over rows in random order, and yield its batches."""
    options = StreamOptions(direct=direct)
    yield from StreamLoader(
        rows.root, format="npy", batch_size=1024, order="random", seed=seed, options=options
    )


def block(options: argparse.Namespace) -> Iterator[Row]:
    """Compare cold block order of 512-byte rows with sequential limits, and report its memory."""
    rows = dataset(options, "rows")
    order = Order("block", 1024, 0, *blocks_of(rows.schema, 1024, BLOCK_BYTES, WINDOW_BYTES))
    epoch = harness.epochs(rows, "npy", DIRECT["direct"], order, "cold")
    memory, before, file = list[int](), process_counters.memory_bytes([]) or 0, rows.files_of("npy")[0]

    def stream(number: int) -> float:
        measured = epoch(number)
        memory.append(measured.memory.peak_bytes or 0)
        return measured.timing.logical_bytes / measured.timing.epochs_s

    others = {
        "iobench's limit": lambda number: hardware_limits.sequential_read(file).bytes_per_s,
        "fio 1M, depth 32": fio(file, "read", 1 << 20, 32),
    }
    rates = harness.medians({"stream": stream, **others}, options.rounds)
    more = {"MiB of memory (at most 512)": (max(memory) - before) / 2**20}
    for other in others:
        yield {"work": "cold, block order, 512 B", **against(rates, "stream", other, 0.9), **more}


def encoded(options: argparse.Namespace) -> Iterator[Row]:
    """Compare LMDB in random order, warm, with DataLoader reading one sample at a time."""
    rows = dataset(options, "rows")
    contenders = {
        loader: epoch_rate(rows, "lmdb", loader, Order("random", 256))
        for loader in ("stream", *dataloaders("sample"))
    }
    rates = harness.medians(contenders, options.rounds)
    yield {"work": "LMDB, 512 B, random", **against(rates, "stream", best(rates, "dataloader"), 2)}


def documents(options: argparse.Namespace) -> Iterator[Row]:
    """Compare documents of median 500 tokens in batches of 64 with rows of one length and usual loops."""
    field, size = Field("tokens", (-1,), "uint16"), int(1e8 * options.scale)
    folder = {"data_dir": options.data_dir}
    source = GeneratedLengths((field,), "lognormal:500,1", size)
    ragged = iobench.prepare(source, ["npy"], **folder, name=f"documents-{options.scale}")[0]
    length = size // ragged.schema.samples
    rows = iobench.Synthetic(ragged.schema.samples * length, (length,), dtype="uint16")
    fixed = iobench.prepare(rows, ["npy"], **folder, name=f"documents-of-one-length-{options.scale}")[0]
    for order, cache in ((OF_TOKENS, "warm"), (Order("sequential", 64), "warm"), (OF_TOKENS, "cold")):
        loaders = ("stream", "native", *(dataloaders("sample") if cache == "warm" else ()))
        contenders = {one: epoch_rate(ragged, "npy", one, order, cache) for one in loaders}
        contenders["one length"] = epoch_rate(fixed, "npy", "stream", order, cache)
        rates = harness.medians(contenders, options.rounds)
        others = {"one length": 0.8, "native": 1}
        if cache == "warm":
            others[best(rates, "dataloader")] = 10
        for other, expected in others.items():
            yield {"work": f"documents, {order.kind}, {cache}", **against(rates, "stream", other, expected)}


def tokens(options: argparse.Namespace) -> Iterator[Row]:
    """Compare windows of 1,025 tokens in batches of 64, random, warm, with usual loops: in MB/s of uint16.

    `get_batch` is nanoGPT's: it maps the file for each batch, draws with replacement, and copies inputs and
    targets as int64; the batches of "stream, int64" are converted likewise.
    """
    file = options.folder / "train.bin"
    count = int(1e8 * options.scale)
    np.random.default_rng(0).integers(0, 50_257, count).astype(np.uint16).tofile(file)
    data = iobench.add(file, "tokens:dtype=uint16", name="tokens", data_dir=options.folder)[0]
    variant = next(iter(data.artifacts))
    others = ("native", *dataloaders("sample"))
    contenders = {one: epoch_rate(data, variant, one, OF_TOKENS) for one in ("stream", *others)}
    contenders["stack of views"] = partial(loop_rate, data, partial(stack_of_views, file))
    contenders["get_batch"] = partial(loop_rate, data, partial(get_batch, file))
    contenders["stream, int64"] = partial(loop_rate, data, partial(converted, data, variant))
    rates = harness.medians(contenders, options.rounds)
    best_dataloader = best(rates, "dataloader")
    for one, other, expected in (
        *(("stream", name, 3) for name in ("native", "stack of views")),
        ("stream, int64", "get_batch", 3),
        ("stream", best_dataloader, 10),
    ):
        yield {"work": "windows of tokens", **against(rates, one, other, expected)}


def loop_rate(data: Manifest, loop: Callable[[int], Iterator[Any]], number: int) -> float:
    """Return the bytes of windows per second of one epoch of a loop, as uint16."""
    batches, elapsed_s = harness.timed(lambda: sum(1 for _ in loop(number)))
    assert batches == -(-data.schema.samples // 64), batches
    return data.schema.logical_bytes / elapsed_s


def stack_of_views(file: Path, number: int) -> Iterator[torch.Tensor]:
    """Yield stacks of slices of a plain array, which are cheaper than slices of `np.memmap`."""
    stored = np.asarray(np.memmap(file, np.uint16, "r"))
    for rows in OF_TOKENS.batches((len(stored) - 1025) // 1024 + 1, number):
        yield torch.from_numpy(np.stack([stored[i * 1024 : i * 1024 + 1025] for i in rows.tolist()]))


def get_batch(file: Path, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches as nanoGPT's train.py makes them, for as many as an epoch has."""
    samples = (file.stat().st_size // 2 - 1025) // 1024 + 1
    for _ in range(-(-samples // 64)):
        data = np.memmap(file, dtype=np.uint16, mode="r")
        starts = torch.randint(len(data) - 1024, (64,))
        x = torch.stack([torch.from_numpy(data[i : i + 1024].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 1025].astype(np.int64)) for i in starts])
        yield x, y


def converted(data: Manifest, variant: str, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield StreamLoader's batches as int64, split into inputs and targets."""
    loader = StreamLoader(data.root, format=variant, batch_size=64, order="random", seed=number)
    for batch in loader:
        ids = batch["tokens"].long()
        yield ids[:, :-1], ids[:, 1:]


def own_cost(options: argparse.Namespace) -> Iterator[Row]:
    """Measure the overhead per batch, and the time to the first batch from a cold disk."""
    (own,) = floor("stream", 20_000, 7, options.folder)
    yield {"work": "overhead of a batch", "ms": own["µs per batch"] / 1e3, "at most": 0.05}
    rows = dataset(options, "rows")
    disk = hardware_limits.random_read(rows.files_of("npy")[0], 512).reads_per_s or 1.0
    for way in DIRECT:
        waits_s = []
        for number in range(options.rounds):
            page_cache.establish("cold", rows.files_of("npy"), rows.schema.logical_bytes)
            batches = small_batches(rows, number, direct=way == "direct")
            waits_s.append(harness.timed(lambda batches=batches: next(batches))[1])
        most_s = 3 * 1024 / disk + 0.05  # three times its reads, and 50 ms
        yield {
            "work": f"first batch, cold, {way}",
            "ms": statistics.median(waits_s) * 1e3,
            "at most": most_s * 1e3,
        }
