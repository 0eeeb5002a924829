"""Hold the stream loader against limits, fio and other loaders, one line for each kind of work.

Run:  .venv/bin/python scripts/stream_speed.py [WORK…] [--data-dir data] [--rounds 5] [--scale 1.0]

Prepares its datasets (2 GB of 150 KB images and 1.2 GB of 512-byte rows at scale 1) in the data
folder. Everything that is compared takes turns; figures are medians, ratios are within this run.
Cold lines need fio (Debian: apt install fio).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from harness_floor import floor_us

import iobench
from iobench import StreamLoader
from iobench.bench.epoch import RoundSpec, measure
from iobench.dataset.manifest import Manifest
from iobench.host import hardware_limits, page_cache, process_usage
from iobench.loading import loaders
from iobench.loading.host_to_device import HostToDevice
from iobench.loading.loaders import Job
from iobench.loading.order import BLOCK_BYTES, WINDOW_BYTES, Order, blocks_of
from iobench.results.parts import Measured

FORMATS = ["npy", "memmap", "hdf5:chunk_bytes=0", "lmdb"]
CORES = len(os.sched_getaffinity(0))
Rate = Callable[[int], float]  # of a round's number; bytes or rows per second


@dataclass
class Bench:
    """The datasets and how often to measure."""

    data_dir: Path
    rounds: int
    scale: float

    def dataset(self, name: str) -> Manifest:
        """Images or rows, prepared if they are not there."""
        kind = {"images": ("uint8", (3, 224, 224), 2e9), "rows": ("float32", (128,), 3e8)}[name]
        source = iobench.Synthetic(int(kind[2] * self.scale), kind[1], dtype=kind[0])
        return iobench.prepare(source, FORMATS, data_dir=self.data_dir, name=f"{name}-{self.scale}")[0]

    def medians(self, rates: dict[str, Rate]) -> dict[str, float]:
        """The median rate of each contender over rounds in which all take turns."""
        found: dict[str, list[float]] = {name: [] for name in rates}
        for number in range(self.rounds + 1):
            for name, rate in rates.items():
                measured = rate(number)
                if number:  # the first round warms up
                    found[name].append(measured)
        return {name: statistics.median(values) for name, values in found.items()}


def epochs(
    manifest: Manifest, variant: str, loader: str, cold: bool, order: str, batch_size: int, **options: Any
) -> Callable[[int], Measured]:
    """What one epoch of a case took, by the round's number."""
    one, transfer = loaders.get(loader, **options).on("cpu"), HostToDevice(torch.device("cpu"), False)
    blocks = blocks_of(manifest.schema, batch_size, BLOCK_BYTES, WINDOW_BYTES)
    job = Job(manifest.opener(variant), Order(order, batch_size, 0, *blocks))

    def epoch(number: int) -> Measured:
        mode = "cold" if cold else "warm"
        page_cache.establish(mode, manifest.files_of(variant), manifest.schema.logical_bytes)
        return measure(one, job, transfer, RoundSpec(number, lambda batch: None, seconds=0.0))

    return epoch


def epoch_rate(
    manifest: Manifest, variant: str, loader: str, cold: bool, order: str, batch_size: int, **options: Any
) -> Rate:
    """Logical bytes per second of one epoch of a case."""
    epoch = epochs(manifest, variant, loader, cold, order, batch_size, **options)

    def rate(number: int) -> float:
        timing = epoch(number).timing
        return timing.logical_bytes / timing.epochs_s

    return rate


def fio(file: Path, kind: str, size: int | str, depth: int) -> Rate:
    """Bytes per second of fio past the page cache: `read` or `randread` in pieces of `size`."""
    program = shutil.which("fio")
    if program is None:
        sys.exit("stream_speed: fio is not installed; apt install fio, or name other work")
    command = f"{program} --name=x --filename={file} --readonly --direct=1 --rw={kind} --bs={size}"
    command += f" --iodepth={depth} --ioengine=libaio --time_based --runtime=2 --output-format=json"

    def rate(number: int) -> float:
        done = subprocess.run(command.split(), capture_output=True, text=True, check=True)
        return float(json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"])

    return rate


def line(work: str, stream: float, reference: float, against: str, wanted: float, unit: str = "MB/s") -> None:
    """One line of the table."""
    scale = 1e6 if unit == "MB/s" else 1e3
    print(
        f"{work:44} {stream / scale:9,.0f} {unit:7} {reference / scale:9,.0f} {against:42} "
        f"{stream / reference:6.2f}  (wanted {wanted})",
        flush=True,
    )


def warm_large(bench: Bench) -> None:
    """150 KB samples in batches of 128: the limit of copying out of the page cache, and DataLoader."""
    images = bench.dataset("images")
    slot, file = 128 * images.schema.sample_bytes, images.files_of("npy")[0]
    rates: dict[str, Rate] = {}
    for threads in sorted({1, CORES}):
        rates[f"limit {threads}"] = lambda n, t=threads: (
            hardware_limits.page_cache_read(file, slot, 5, t).bytes_per_s
        )
    for order in ("random", "sequential"):
        rates[order] = epoch_rate(images, "npy", "stream", False, batch_size=128, order=order)
        for fetch in ("sample", "batch"):
            for workers in range(CORES + 1):
                more = {"batch_size": 128, "order": order, "fetch": fetch, "num_workers": workers}
                rates[f"DataLoader {order} {fetch} {workers}"] = epoch_rate(
                    images, "npy", "dataloader", False, **more
                )
    found = bench.medians(rates)
    limit = max(found[f"limit {threads}"] for threads in {1, CORES})
    for order in ("random", "sequential"):
        best = max((name for name in found if name.startswith(f"DataLoader {order}")), key=found.__getitem__)
        line(f"warm, 150 KB, {order}", found[order], limit, "page cache into a ring of the same slots", 0.9)
        line(f"warm, 150 KB, {order}", found[order], found[best], best, 2)


def warm_small(bench: Bench) -> None:
    """512-byte rows in batches of 1024 at random."""
    rows = bench.dataset("rows")
    settings = {"batch_size": 1024, "order": "random"}
    found = bench.medians(
        {
            "stream": epoch_rate(rows, "memmap", "stream", False, **settings),
            "DataLoader, sample fetch, memmap": epoch_rate(rows, "memmap", "dataloader", False, **settings),
            "DataLoader, batch fetch, memmap": epoch_rate(
                rows, "memmap", "dataloader", False, **settings, fetch="batch"
            ),
            "tensorclass memmap indexing": epoch_rate(rows, "memmap", "native", False, **settings),
        }
    )
    for (name, rate), wanted in zip(list(found.items())[1:], (20, 5, 6), strict=True):
        line("warm, 512 B, random, batch 1024", found["stream"], rate, name, wanted)


def cold_sequential(bench: Bench) -> None:
    """In order from disk, past the cache and through it."""
    images = bench.dataset("images")
    reference = fio(images.files_of("npy")[0], "read", 1 << 20, 32)
    for variant in FORMATS[:3]:
        settings = {"batch_size": 128, "order": "sequential"}
        found = bench.medians(
            {
                "fio": reference,
                "limit": lambda n: hardware_limits.sequential_read(images.files_of("npy")[0]).bytes_per_s,
                "direct": epoch_rate(images, variant, "stream", True, **settings, direct=True),
                "cached": epoch_rate(images, variant, "stream", True, **settings, direct=False),
            }
        )
        for way in ("direct", "cached"):
            line(
                f"cold, sequential, {variant}, {way}", found[way], found["fio"], "fio read 1M, depth 32", 0.95
            )
        line(
            f"cold, sequential, {variant}, direct",
            found["direct"],
            found["limit"],
            "iobench's own limit",
            0.9,
        )


def cold_random_large(bench: Bench) -> None:
    """150 KB samples at random from disk."""
    images = bench.dataset("images")
    settings = {"batch_size": 128, "order": "random"}
    found = bench.medians(
        {
            "fio": fio(images.files_of("npy")[0], "randread", 148 << 10, 32),
            "direct": epoch_rate(images, "npy", "stream", True, **settings, direct=True),
            "cached": epoch_rate(images, "npy", "stream", True, **settings, direct=False),
        }
    )
    for way in ("direct", "cached"):
        line(f"cold, random, 150 KB, {way}", found[way], found["fio"], "fio randread 148k, depth 32", 0.9)


def cold_random_small(bench: Bench) -> None:
    """512-byte rows at random from disk: past the cache a few seconds of it, through it an epoch."""
    rows = bench.dataset("rows")
    file, size = rows.files_of("npy")[0], rows.schema.sample_bytes

    def direct(number: int) -> float:
        loader = StreamLoader(
            rows.root, format="npy", batch_size=1024, order="random", seed=number, direct=True
        )
        started, count = perf_counter(), 0
        for batch in islice(loader, 200):
            count += len(batch["x"])
        return count / (perf_counter() - started)

    cached = epoch_rate(rows, "npy", "stream", True, batch_size=1024, order="random", direct=False)
    page = fio(file, "randread", 4096, 32)
    found = bench.medians(
        {"fio": lambda n: page(n) / 4096, "direct": direct, "cached": lambda n: cached(n) / size}
    )
    for way in ("direct", "cached"):
        against = "fio randread 4k, depth 32 (reads/s)"
        line(f"cold, random, 512 B, {way}", found[way], found["fio"], against, 0.9, "k rows/s")


def block(bench: Bench) -> None:
    """512-byte rows in block order from disk, and the memory that it takes."""
    rows = bench.dataset("rows")
    epoch = epochs(rows, "npy", "stream", True, "block", 1024, direct=True)
    memory, before = list[int](), process_usage.memory_bytes([]) or 0

    def stream(number: int) -> float:
        measured = epoch(number)
        memory.append(measured.memory.peak_bytes or 0)
        return measured.timing.logical_bytes / measured.timing.epochs_s

    file = rows.files_of("npy")[0]
    found = bench.medians(
        {
            "stream": stream,
            "limit": lambda n: hardware_limits.sequential_read(file).bytes_per_s,
            "fio": fio(file, "read", 1 << 20, 32),
        }
    )
    line("cold, block order, 512 B", found["stream"], found["limit"], "iobench's own sequential limit", 0.9)
    line("cold, block order, 512 B", found["stream"], found["fio"], "fio read 1M, depth 32", 0.9)
    print(
        f"{'':44} {(max(memory) - before) / 2**20:9,.0f} MiB of memory beside the process's own (at most 512)"
    )


def lmdb(bench: Bench) -> None:
    """LMDB at random, warm, against one sample at a time under DataLoader."""
    rows = bench.dataset("rows")
    settings = {"batch_size": 256, "order": "random"}
    rates = {"stream": epoch_rate(rows, "lmdb", "stream", False, **settings)}
    for workers in range(CORES + 1):
        usual = epoch_rate(rows, "lmdb", "dataloader", False, **settings, num_workers=workers)
        rates[f"DataLoader per sample, {workers} workers"] = usual
    found = bench.medians(rates)
    best = max((name for name in found if name != "stream"), key=found.__getitem__)
    line("warm, LMDB, 512 B, random", found["stream"], found[best], best, 2)


def own_cost(bench: Bench) -> None:
    """What a batch costs that is nothing, and how soon the first one comes from a cold disk."""
    print(f"{'own cost per batch (null format)':44} {floor_us('stream'):9.2f} µs (at most 50)")
    rows = bench.dataset("rows")
    disk = hardware_limits.random_read(rows.files_of("npy")[0], 512).reads_per_s or 1.0
    for direct in (True, False):
        waits = []
        for number in range(bench.rounds):
            page_cache.establish("cold", rows.files_of("npy"), rows.schema.logical_bytes)
            waits.append(_first_wait(rows, direct, number))
        name, wait = f"first batch, cold, {'direct' if direct else 'cached'}", statistics.median(waits)
        most = 3 * 1024 / disk + 0.05
        print(f"{name:44} {wait * 1e3:9.1f} ms (at most {most * 1e3:.1f}: 3 × its reads + 50 ms)", flush=True)


def _first_wait(rows: Manifest, direct: bool, number: int) -> float:
    started = perf_counter()
    loader = StreamLoader(
        rows.root, format="npy", batch_size=1024, order="random", seed=number, direct=direct
    )
    batches: Iterator[Any] = iter(loader)
    next(batches)
    return perf_counter() - started


WORK = {
    work.__name__.replace("_", "-"): work
    for work in (
        warm_large,
        warm_small,
        cold_sequential,
        cold_random_large,
        cold_random_small,
        block,
        lmdb,
        own_cost,
    )
}


def main() -> None:
    """Run the work that is named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", nargs="*", choices=[*WORK, []], help="default: all")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    bench = Bench(options.data_dir, options.rounds, options.scale)
    for name in options.work or WORK:
        WORK[name](bench)


if __name__ == "__main__":
    main()
