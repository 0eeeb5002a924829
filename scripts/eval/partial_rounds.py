"""Compare rounds that are parts of an epoch with whole epochs: the ratio of their samples per second.

Each trial is a format, a loader, a cache state and an order. In each round the whole epoch and the part take
turns in random order. The median of the ratios should lie within 0.98 and 1.02, each within 0.93 and 1.07.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator, Sequence
from functools import partial

import torch

import iobench
from eval.harness import Row, Trials
from iobench import Manifest
from iobench.bench.epoch import RoundSpec, measure
from iobench.bench.rounds import interleaved
from iobench.host import page_cache
from iobench.loading import loaders
from iobench.loading.host_to_device import HostToDevice
from iobench.loading.loaders import Job
from iobench.loading.order import Batching

OPTIONS = {
    "size": (5.4e8, "float32 elements of the dataset; the default makes 2 GiB"),
    "batches": (200, "batches of a window"),
    "rounds": (7, "rounds of each contender"),
}
FORMATS = ("npy", "hdf5", "lmdb", "memmap", "zarr", "webdataset")
LOADERS = (
    "dataloader",
    "dataloader:fetch=batch",
    "dataloader:num_workers=2",
    "native",
    "stream",
    "torchdata",
    "webdataset",
)
MEDIAN, EACH = (0.98, 1.02), (0.93, 1.07)


def trials(options: argparse.Namespace) -> Trials:
    manifest, _ = iobench.prepare(
        iobench.Synthetic(int(options.size)), list(FORMATS), data_dir=options.data_dir
    )
    return {
        f"{variant}-{word}-{cache}-{order}": partial(ratio, manifest, variant, word, cache, order, options)
        for variant, word, cache in itertools.product(FORMATS, LOADERS, page_cache.MODES)
        for loader in [loaders.parse(word)]
        if loader.reads(manifest.opener(variant).format)
        for order in loader.orders
    }


def ratio(
    manifest: Manifest, variant: str, word: str, cache: str, order: str, options: argparse.Namespace
) -> Iterator[Row]:
    """Yield the median ratio of the rate of parts to that of whole epochs."""
    job = Job(manifest.opener(variant), Batching(order).row_order(manifest.schema))
    loader, transfer = loaders.parse(word).on("cpu"), HostToDevice(torch.device("cpu"), False)
    rates: dict[int | None, list[float]] = {None: [], options.batches: []}
    share = 1.0
    for number, batches in interleaved(list(rates), lambda done: done <= options.rounds):
        page_cache.establish(cache, manifest.files_of(variant), manifest.schema.logical_bytes)
        spec = RoundSpec(number, lambda batch: None, seconds=0.0, batches=batches, warm=cache == "warm")
        timing = measure(loader, job, transfer, spec).timing
        epoch_s, samples = timing.epochs_s / timing.epochs, timing.samples / timing.epochs
        if timing.partial is not None:
            share = timing.samples / timing.epochs / timing.partial.epoch_samples
            epoch_s, samples = timing.partial.epoch_s, timing.partial.epoch_samples
        rates[batches].append(samples / epoch_s)
    whole, parts = (statistics.median(values[1:]) for values in rates.values())
    yield {"whole": whole, "parts": parts, "share": share, "ratio": parts / whole}


def summary(rows: Sequence[Row]) -> list[str]:
    """Return the median and the extremes of the ratios, and the trials outside of the limits."""
    ratios = [row["ratio"] for row in rows]
    median, low, high = statistics.median(ratios), min(ratios), max(ratios)
    outside = [row["trial"] for row in rows if not EACH[0] <= row["ratio"] <= EACH[1]]
    verdict = "within" if MEDIAN[0] <= median <= MEDIAN[1] and not outside else "outside"
    return [
        f"median {median:.3f}, from {low:.3f} to {high:.3f}: {verdict} the limits",
        *([f"outside {EACH[0]} to {EACH[1]}: {', '.join(outside)}"] if outside else []),
    ]
