"""Compare StreamLoader over every format with StreamLoader over npy. Takes hours at scale 1.

    .venv/bin/python scripts/placements.py [--data-dir data] [--rounds 5] [--scale 1.0]
          [--sample rows images floats] [--order random block] [--cache warm cold] [--format VARIANT…]

Prepares its datasets in the data folder (at scale 1, 0.6 GB each): 512-byte rows, 150 KB images of noise,
which no codec compresses, and 150 KB images as normalized floats from 0 to 1. The contenders take turns, and
the table has medians, ratios and the expected ratios:

- formats that store samples as they are in memory, relative to npy (expected: 0.8);
- formats with encoded blocks, relative to decoding all blocks from memory with a thread per CPU (expected:
  0.8), except in random order, which decodes nearly every block for each group of batches;
- LMDB and chunked HDF5 in random order, warm, relative to their own libraries reading one sample at a time
  (expected: 10 and 20).
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

import h5py
import lmdb
import numpy as np
from stream_speed import epoch_rate

import iobench
from iobench import formats
from iobench.base.errors import InvalidSettings, IobenchError
from iobench.dataset.manifest import Manifest
from iobench.dataset.sources import Source
from iobench.formats import Blocks
from iobench.host import page_cache
from iobench.stream.backend_selection import check_placements

Rate = Callable[[int], float]

SAMPLES = {
    "rows": ("float32", (128,), 1.5e8, 1024),
    "images": ("uint8", (3, 224, 224), 6e8, 128),
    "floats": ("float32", (3, 112, 112), 1.5e8, 128),
}
EXTRA_VARIANTS = ["hdf5:chunk_bytes=0", "hdf5:compression=gzip", "lmdb:codec=lz4"]
PER_SAMPLE = 3000  # samples that a library reads one at a time


def dataset(options: argparse.Namespace, name: str) -> Manifest:
    """Prepare the dataset of a kind of sample in all formats that can be written here."""
    dtype, shape, size, _ = SAMPLES[name]
    elements = int(size * options.scale)
    source = (
        normalized(options.data_dir, elements, shape)
        if name == "floats"
        else iobench.Synthetic(elements, shape, dtype=dtype)
    )
    usable = [entry["name"] for entry in formats.describe() if entry["usable"] == "yes"]
    variants = options.format or [*usable, *EXTRA_VARIANTS]
    manifest = None
    for variant in dict.fromkeys(["npy", *variants]):
        try:
            manifest, _ = iobench.prepare(
                source, [variant], data_dir=options.data_dir, name=f"placements-{name}-{options.scale}"
            )
        except IobenchError as error:
            print(f"{name}: {variant} skipped: {error}")
    assert manifest is not None
    return manifest


def normalized(folder: Path, elements: int, shape: tuple[int, ...]) -> Source:
    """Create images as normalized floats, which codecs compress well."""
    file = folder / f"normalized-{elements}.npy"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        samples = (elements // math.prod(shape), *shape)
        pixels = np.random.default_rng(0).integers(0, 256, samples, np.uint8)
        np.save(file, pixels / np.float32(255))
    return iobench.open_source(file)


def kinds(manifest: Manifest) -> tuple[list[str], dict[str, list[Blocks]]]:
    """Return the prepared variants with a placement for all fields, and those with blocks."""
    placed, encoded = [], {}
    for variant in manifest.artifacts:
        with manifest.opener(variant)() as reader:
            try:
                check_placements(reader.placement(), manifest.schema, variant)
                placed.append(variant)
            except InvalidSettings:
                if blocks := list(reader.blocks()):
                    encoded[variant] = blocks
    return placed, encoded


def decoding(manifest: Manifest, tables: list[Blocks]) -> Rate:
    """Measure the bytes per second of decoding all blocks from memory with a thread for each CPU."""
    content = {path: np.fromfile(path, np.uint8) for table in tables for path in table.files}
    ends = {id(table): np.append(table.first[1:], manifest.schema.samples) for table in tables}
    largest = max(int((ends[id(table)] - table.first).max()) for table in tables)
    local = threading.local()  # memory is touched once, as a loader's is

    def decode(task: tuple[Blocks, int]) -> None:
        table, number = task
        if not hasattr(local, "buffers"):
            local.buffers = manifest.schema.empty(largest)
        rows = int(ends[id(table)][number] - table.first[number])
        out = {name: local.buffers[name][:rows] for name in table.fields}
        low = int(table.offset[number])
        stored = content[table.files[int(table.file[number])]][low : low + int(table.stored[number])]
        table.decode(number, stored.data, out)

    def rate(number: int) -> float:
        tasks = [(table, block) for table in tables for block in range(len(table.first))]
        started = perf_counter()
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(decode, tasks))
        return manifest.schema.logical_bytes / (perf_counter() - started)

    return rate


def single_samples(manifest: Manifest, variant: str) -> Rate:
    """Measure the bytes per second of the library reading one sample at a time, in random order."""
    (file,) = manifest.files_of(variant)

    def rate(number: int) -> float:
        rows = np.random.default_rng(number).permutation(manifest.schema.samples)[:PER_SAMPLE].tolist()
        page_cache.warm([file])
        if variant == "lmdb":
            with lmdb.open(str(file.parent), readonly=True, lock=False) as env:
                started = perf_counter()
                for row in rows:
                    with env.begin() as transaction:
                        np.frombuffer(transaction.get(row.to_bytes(8, "big")), np.uint8)
                elapsed = perf_counter() - started
        else:
            with h5py.File(file) as opened:
                started = perf_counter()
                for row in rows:
                    opened["x"][row]
                elapsed = perf_counter() - started
        return len(rows) * manifest.schema.sample_bytes / elapsed

    return rate


def medians(rates: dict[str, Rate], rounds: int) -> dict[str, float]:
    """Return the median rate of each contender over rounds in random order."""
    measured_rates: dict[str, list[float]] = {name: [] for name in rates}
    for number in range(rounds + 1):
        names = list(rates)
        random.Random(number).shuffle(names)
        for name in names:
            print(f"round {number} of {rounds}: {name:40}", end="\r", file=sys.stderr, flush=True)
            measured = rates[name](number)
            if number:  # the first round is a warm-up
                measured_rates[name].append(measured)
    return {name: statistics.median(values) for name, values in measured_rates.items()}


def compare(options: argparse.Namespace, name: str, order: str, state: str) -> None:
    """Print the lines of one kind of sample, order and cache state."""
    manifest, batch_size = dataset(options, name), SAMPLES[name][3]
    placed, encoded = kinds(manifest)
    if order == "random":
        encoded = {}
    for variant in manifest.artifacts:  # pages from writing have other sizes
        page_cache.evict(manifest.files_of(variant))
    rates: dict[str, Rate] = {}
    for variant in ["npy", *(v for v in placed if v != "npy"), *encoded]:
        rates[variant] = epoch_rate(
            manifest, variant, "stream", state == "cold", order=order, batch_size=batch_size
        )
    for variant, tables in encoded.items():
        rates[f"{variant} decoded"] = decoding(manifest, tables)
    libraries = [v for v in ("lmdb", "hdf5") if v in placed and (order, state) == ("random", "warm")]
    for variant in libraries:
        rates[f"{variant} itself"] = single_samples(manifest, variant)
    result = medians(rates, options.rounds)
    for variant in [*placed, *encoded]:
        against = f"{variant} decoded" if variant in encoded else "npy"
        line(f"{name}, {order}, {state}: {variant}", result[variant], result[against], against, 0.8)
    for variant, expected in zip(libraries, (10, 20), strict=False):
        itself = f"{variant} itself"
        line(f"{name}, {order}, {state}: {variant}", result[variant], result[itself], itself, expected)


def line(what: str, rate: float, reference: float, against: str, expected: float) -> None:
    """Print one line of the table."""
    print(
        f"{what:48} {rate / 1e6:8,.0f} MB/s {reference / 1e6:8,.0f} {against:30} "
        f"{rate / reference:6.2f} (expected {expected})",
        flush=True,
    )


def main() -> None:
    """Compare the selected kinds of samples, orders and cache states."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="the data folder")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each contender")
    parser.add_argument("--scale", type=float, default=1.0, help="of the datasets' size")
    parser.add_argument("--sample", nargs="*", choices=SAMPLES, default=list(SAMPLES))
    parser.add_argument(
        "--order", nargs="*", choices=["sequential", "random", "block"], default=["random", "block"]
    )
    parser.add_argument("--cache", nargs="*", choices=["warm", "cold"], default=["warm", "cold"])
    parser.add_argument("--format", nargs="*", help="variants; default: all formats and some variants")
    options = parser.parse_args()
    for name in options.sample:
        for order in options.order:
            for state in options.cache:
                compare(options, name, order, state)


if __name__ == "__main__":
    main()
