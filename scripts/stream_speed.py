"""Compare StreamLoader with hardware limits, fio and other loaders, by workload.

    .venv/bin/python scripts/stream_speed.py [WORKLOAD...] [--data-dir data] [--rounds 5] [--scale 1.0]

Takes from half a minute (own-cost at scale 0.02) to many minutes (warm-large at scale 1) for each workload.
Prepares its datasets in the data folder (at scale 1: 2 GB of 150 KB images and 1.2 GB of 512-byte rows). All
contenders take turns; the table has medians, ratios within this run and the expected ratios. The cold
workloads need fio (Debian: apt install fio) and root, which drops the page cache.
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
from iobench.host import hardware_limits, page_cache, process_counters
from iobench.loading import loaders
from iobench.loading.host_to_device import HostToDevice
from iobench.loading.loaders import Job
from iobench.loading.order import BLOCK_BYTES, WINDOW_BYTES, Order, blocks_of
from iobench.results.parts import Measured

FORMATS = ["npy", "memmap", "hdf5:chunk_bytes=0", "lmdb"]
CORES = len(os.sched_getaffinity(0))
Rate = Callable[[int], float]  # round number → bytes or rows per second


@dataclass
class Bench:
    """The datasets and the number of rounds."""

    data_dir: Path
    rounds: int
    scale: float

    def dataset(self, name: str) -> Manifest:
        """Return the images or rows, prepared if necessary."""
        kind = {"images": ("uint8", (3, 224, 224), 2e9), "rows": ("float32", (128,), 3e8)}[name]
        source = iobench.Synthetic(int(kind[2] * self.scale), kind[1], dtype=kind[0])
        return iobench.prepare(source, FORMATS, data_dir=self.data_dir, name=f"{name}-{self.scale}")[0]

    def medians(self, rates: dict[str, Rate]) -> dict[str, float]:
        """Return the median rate of each contender over interleaved rounds."""
        measured_rates: dict[str, list[float]] = {name: [] for name in rates}
        for number in range(self.rounds + 1):
            for name, rate in rates.items():
                measured = rate(number)
                if number:  # the first round is a warm-up
                    measured_rates[name].append(measured)
        return {name: statistics.median(values) for name, values in measured_rates.items()}


def epochs(
    manifest: Manifest, variant: str, loader: str, cold: bool, order: str, batch_size: int, **options: Any
) -> Callable[[int], Measured]:
    """Return a function that measures one epoch of a case, given the round number."""
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
    """Return a function that measures the logical bytes per second of one epoch of a case."""
    epoch = epochs(manifest, variant, loader, cold, order, batch_size, **options)

    def rate(number: int) -> float:
        timing = epoch(number).timing
        return timing.logical_bytes / timing.epochs_s

    return rate


def fio(file: Path, kind: str, size: int | str, depth: int) -> Rate:
    """Return a function that runs fio past the page cache (`read` or `randread` in blocks of `size`)."""
    program = shutil.which("fio")
    if program is None:
        sys.exit("stream_speed: fio is not installed; apt install fio, or select other workloads")
    command = f"{program} --name=x --filename={file} --readonly --direct=1 --rw={kind} --bs={size}"
    command += f" --iodepth={depth} --ioengine=libaio --time_based --runtime=2 --output-format=json"

    def rate(number: int) -> float:
        done = subprocess.run(command.split(), capture_output=True, text=True, check=True)
        return float(json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"])

    return rate


def line(
    workload: str, stream: float, reference: float, against: str, expected: float, unit: str = "MB/s"
) -> None:
    """Print one line of the table."""
    scale = 1e6 if unit == "MB/s" else 1e3
    print(
        f"{workload:44} {stream / scale:9,.0f} {unit:7} {reference / scale:9,.0f} {against:42} "
        f"{stream / reference:6.2f}  (expected {expected})",
        flush=True,
    )


def warm_large(bench: Bench) -> None:
    """Compare 150 KB samples in batches of 128 with the page cache limit and with DataLoader."""
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
    rates_of = bench.medians(rates)
    limit = max(rates_of[f"limit {threads}"] for threads in {1, CORES})
    for order in ("random", "sequential"):
        best = max(
            (name for name in rates_of if name.startswith(f"DataLoader {order}")), key=rates_of.__getitem__
        )
        line(
            f"warm, 150 KB, {order}", rates_of[order], limit, "page cache into a ring of the same slots", 0.9
        )
        line(f"warm, 150 KB, {order}", rates_of[order], rates_of[best], best, 2)


def warm_small(bench: Bench) -> None:
    """Compare 512-byte rows in batches of 1024, random order, with other loaders."""
    rows = bench.dataset("rows")
    settings = {"batch_size": 1024, "order": "random"}
    rates_of = bench.medians(
        {
            "stream": epoch_rate(rows, "memmap", "stream", False, **settings),
            "DataLoader, sample fetch, memmap": epoch_rate(rows, "memmap", "dataloader", False, **settings),
            "DataLoader, batch fetch, memmap": epoch_rate(
                rows, "memmap", "dataloader", False, **settings, fetch="batch"
            ),
            "tensorclass memmap indexing": epoch_rate(rows, "memmap", "native", False, **settings),
        }
    )
    for (name, rate), expected in zip(list(rates_of.items())[1:], (20, 5, 6), strict=True):
        line("warm, 512 B, random, batch 1024", rates_of["stream"], rate, name, expected)


def cold_sequential(bench: Bench) -> None:
    """Compare cold sequential reads, direct and through the page cache, with fio."""
    images = bench.dataset("images")
    reference = fio(images.files_of("npy")[0], "read", 1 << 20, 32)
    for variant in FORMATS[:3]:
        settings = {"batch_size": 128, "order": "sequential"}
        rates_of = bench.medians(
            {
                "fio": reference,
                "limit": lambda n: hardware_limits.sequential_read(images.files_of("npy")[0]).bytes_per_s,
                "direct": epoch_rate(images, variant, "stream", True, **settings, direct=True),
                "cached": epoch_rate(images, variant, "stream", True, **settings, direct=False),
            }
        )
        for way in ("direct", "cached"):
            line(
                f"cold, sequential, {variant}, {way}",
                rates_of[way],
                rates_of["fio"],
                "fio read 1M, depth 32",
                0.95,
            )
        line(
            f"cold, sequential, {variant}, direct",
            rates_of["direct"],
            rates_of["limit"],
            "iobench's own limit",
            0.9,
        )


def cold_random_large(bench: Bench) -> None:
    """Compare cold random reads of 150 KB samples with fio."""
    images = bench.dataset("images")
    settings = {"batch_size": 128, "order": "random"}
    rates_of = bench.medians(
        {
            "fio": fio(images.files_of("npy")[0], "randread", 148 << 10, 32),
            "direct": epoch_rate(images, "npy", "stream", True, **settings, direct=True),
            "cached": epoch_rate(images, "npy", "stream", True, **settings, direct=False),
        }
    )
    for way in ("direct", "cached"):
        line(
            f"cold, random, 150 KB, {way}", rates_of[way], rates_of["fio"], "fio randread 148k, depth 32", 0.9
        )


def cold_random_small(bench: Bench) -> None:
    """Compare cold random reads of 512-byte rows with fio: direct for 200 batches, cached for an epoch."""
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
    rates_of = bench.medians(
        {"fio": lambda n: page(n) / 4096, "direct": direct, "cached": lambda n: cached(n) / size}
    )
    for way in ("direct", "cached"):
        against = "fio randread 4k, depth 32 (reads/s)"
        line(f"cold, random, 512 B, {way}", rates_of[way], rates_of["fio"], against, 0.9, "k rows/s")


def block(bench: Bench) -> None:
    """Compare cold block order of 512-byte rows with sequential limits, and report its memory."""
    rows = bench.dataset("rows")
    epoch = epochs(rows, "npy", "stream", True, "block", 1024, direct=True)
    memory, before = list[int](), process_counters.memory_bytes([]) or 0

    def stream(number: int) -> float:
        measured = epoch(number)
        memory.append(measured.memory.peak_bytes or 0)
        return measured.timing.logical_bytes / measured.timing.epochs_s

    file = rows.files_of("npy")[0]
    rates_of = bench.medians(
        {
            "stream": stream,
            "limit": lambda n: hardware_limits.sequential_read(file).bytes_per_s,
            "fio": fio(file, "read", 1 << 20, 32),
        }
    )
    line(
        "cold, block order, 512 B",
        rates_of["stream"],
        rates_of["limit"],
        "iobench's own sequential limit",
        0.9,
    )
    line("cold, block order, 512 B", rates_of["stream"], rates_of["fio"], "fio read 1M, depth 32", 0.9)
    print(f"{'':44} {(max(memory) - before) / 2**20:9,.0f} MiB of additional memory (at most 512)")


def lmdb(bench: Bench) -> None:
    """Compare LMDB in random order, warm, with DataLoader reading one sample at a time."""
    rows = bench.dataset("rows")
    settings = {"batch_size": 256, "order": "random"}
    rates = {"stream": epoch_rate(rows, "lmdb", "stream", False, **settings)}
    for workers in range(CORES + 1):
        rate = epoch_rate(rows, "lmdb", "dataloader", False, **settings, num_workers=workers)
        rates[f"DataLoader per sample, {workers} workers"] = rate
    rates_of = bench.medians(rates)
    best = max((name for name in rates_of if name != "stream"), key=rates_of.__getitem__)
    line("warm, LMDB, 512 B, random", rates_of["stream"], rates_of[best], best, 2)


def own_cost(bench: Bench) -> None:
    """Measure the overhead per batch, and the time to the first batch from a cold disk."""
    print(f"{'overhead per batch (null format)':44} {floor_us('stream'):9.2f} µs (at most 50)")
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


WORKLOADS = {
    workload.__name__.replace("_", "-"): workload
    for workload in (
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
    """Run the named workloads, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", nargs="*", choices=[*WORKLOADS, []], help="default: all")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="the data folder")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each contender")
    parser.add_argument("--scale", type=float, default=1.0, help="of the datasets' size")
    options = parser.parse_args()
    bench = Bench(options.data_dir, options.rounds, options.scale)
    for name in options.workload or WORKLOADS:
        WORKLOADS[name](bench)


if __name__ == "__main__":
    main()
