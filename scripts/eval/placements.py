"""Compare StreamLoader over every format with StreamLoader over npy, in MB/s.

Prepares its datasets in the data folder (at scale 1, 0.6 GB each): 512-byte rows, 150 KB images of noise,
which no codec compresses, and 150 KB images as normalized floats from 0 to 1. The contenders are

- formats that store samples as they are in memory, relative to npy (expected: 0.8);
- formats with encoded blocks, relative to decoding all blocks from memory with a thread per CPU (expected:
  0.8), except in random order, which decodes nearly every block for each group of batches;
- LMDB and chunked HDF5 in random order, warm, relative to their own libraries reading one sample at a time
  (expected: 10 and 20).

The trials with a cold page cache need root or sudo, which drops the cache.
"""

from __future__ import annotations

import argparse
import math
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import h5py
import lmdb
import numpy as np

import iobench
from eval import harness
from eval.harness import Rate, Row, Trials, epoch_rate
from iobench import Manifest, Source, formats
from iobench.base.errors import InvalidSettings, IobenchError
from iobench.formats import Blocks
from iobench.host import page_cache
from iobench.loading.batching import BLOCK_BYTES, WINDOW_BYTES, blocks_of
from iobench.loading.order import Order
from iobench.stream.backend_selection import check_placements

OPTIONS = {
    "rounds": (5, harness.ROUNDS),
    "scale": (1.0, "of the datasets' size"),
    "format": ([], "variants; default: all formats and some variants"),
}
SAMPLES = {
    "rows": ("float32", (128,), 1.5e8, 1024),
    "images": ("uint8", (3, 224, 224), 6e8, 128),
    "floats": ("float32", (3, 112, 112), 1.5e8, 128),
}
EXTRA_VARIANTS = ["hdf5:chunk_bytes=0", "hdf5:compression=gzip", "lmdb:codec=lz4"]
ITSELF = {"lmdb": 10, "hdf5": 20}  # expected factor to the library reading one sample at a time
PER_SAMPLE = 3000  # samples that a library reads one at a time


def trials(options: argparse.Namespace) -> Trials:
    return {
        f"{name}-{order}-{cache}": partial(compare, options, name, order, cache)
        for name in SAMPLES
        for order in ("random", "block", "sequential")
        for cache in ("warm", "cold")
    }


def dataset(options: argparse.Namespace, name: str) -> tuple[Manifest, list[Row]]:
    """Prepare the dataset of a kind of sample; return it, and a row for each format that cannot hold it."""
    dtype, shape, size, _ = SAMPLES[name]
    elements, skipped, manifest = int(size * options.scale), [], None
    source: Source = iobench.Synthetic(elements, shape, dtype=dtype)
    if name == "floats":
        source = normalized(options.data_dir, elements, shape)
    usable = [entry["name"] for entry in formats.describe() if entry["usable"] == "yes"]
    call = partial(iobench.prepare, data_dir=options.data_dir, name=f"placements-{name}-{options.scale}")
    for variant in dict.fromkeys(["npy", *(options.format or [*usable, *EXTRA_VARIANTS])]):
        try:
            manifest, _ = call(source, [variant])
        except IobenchError as error:
            skipped.append({"format": variant, "skipped": str(error)})
    assert manifest is not None
    return manifest, skipped


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
    tasks = [(table, block) for table in tables for block in range(len(table.first))]
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

    def decode_all() -> None:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(decode, tasks))

    return lambda number: manifest.schema.logical_bytes / harness.timed(decode_all)[1]


def single_samples(manifest: Manifest, variant: str) -> Rate:
    """Measure the bytes per second of the library reading one sample at a time, in random order."""
    (file,) = manifest.files_of(variant)
    read: Callable[[list[int]], float] = partial({"lmdb": lmdb_samples, "hdf5": hdf5_samples}[variant], file)

    def rate(number: int) -> float:
        rows = np.random.default_rng(number).permutation(manifest.schema.samples)[:PER_SAMPLE].tolist()
        page_cache.warm([file])
        return len(rows) * manifest.schema.sample_bytes / read(rows)

    return rate


def lmdb_samples(file: Path, rows: list[int]) -> float:
    """Return the seconds of reading rows one at a time."""
    with lmdb.open(str(file.parent), readonly=True, lock=False) as env:

        def read() -> None:
            for row in rows:
                with env.begin() as transaction:
                    np.frombuffer(transaction.get(row.to_bytes(8, "big")), np.uint8)

        return harness.timed(read)[1]


def hdf5_samples(file: Path, rows: list[int]) -> float:
    """Return the seconds of reading rows one at a time."""
    with h5py.File(file) as opened:
        return harness.timed(lambda: [opened["x"][row] for row in rows])[1]


def compare(options: argparse.Namespace, name: str, order: str, cache: str) -> Iterator[Row]:
    """Yield the rows of one kind of sample, order and cache state."""
    manifest, skipped = dataset(options, name)
    yield from skipped
    placed, encoded = kinds(manifest)
    if order == "random":
        encoded = {}
    for variant in manifest.artifacts:  # pages from writing have other sizes
        page_cache.evict(manifest.files_of(variant))
    batch_size = SAMPLES[name][3]
    blocks = blocks_of(manifest.schema, batch_size, BLOCK_BYTES, WINDOW_BYTES)
    case = (Order(order, batch_size, 0, *blocks), cache)
    libraries = [v for v in ITSELF if v in placed and (order, cache) == ("random", "warm")]
    contenders = {v: epoch_rate(manifest, v, "stream", *case) for v in ["npy", *placed, *encoded]}
    contenders |= {f"{v} decoded": decoding(manifest, tables) for v, tables in encoded.items()}
    contenders |= {f"{v} itself": single_samples(manifest, v) for v in libraries}
    rates = harness.medians(contenders, options.rounds)
    for variant in [*placed, *encoded]:
        other = f"{variant} decoded" if variant in encoded else "npy"
        yield harness.against(rates, variant, other, 0.8)
    for variant in libraries:
        yield harness.against(rates, variant, f"{variant} itself", ITSELF[variant])
