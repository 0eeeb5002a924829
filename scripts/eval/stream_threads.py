"""Compare StreamLoader's epochs with different numbers of reading threads, in MB/s.

Prepares rows as `stream_floor` does in the data folder. Each round opens a StreamLoader over npy; from a warm
cache its second and later epochs count, from a cold one its first, also past the cache (`direct`). `plain`
is the loop of `stream_floor` with a thread per core, which copies into memory that is used again, and to no
device.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from time import perf_counter
from typing import Any

from eval import harness
from eval.harness import Rate, Row, Trials
from eval.stream_floor import SAMPLES, dataset, loops
from iobench import Manifest, StreamLoader
from iobench.host import page_cache
from iobench.host.device import device_of, pick_device
from iobench.loading.batching import Batching
from iobench.loading.order import ORDERS

CORES = len(os.sched_getaffinity(0))
OPTIONS = {
    "rounds": (7, harness.ROUNDS),
    "scale": (1.0, "of the datasets' size"),
    "device": ("cpu", "the target device"),
    "cache": ("warm", "warm or cold"),
    "threads": ([], "numbers of threads; default: the default, and powers of two up to the cores"),
}
WINDOW_S = 0.15  # least time of a warm round


def trials(options: argparse.Namespace) -> Trials:
    return {f"{size}-{order}": partial(compare, options, size, order) for size in SAMPLES for order in ORDERS}


def compare(options: argparse.Namespace, size: str, order: str) -> Iterator[Row]:
    """Compare numbers of threads for rows of one size in one order."""
    manifest, batch_size = dataset(options, size)
    counts = [int(one) for one in options.threads] or [2**n for n in range(1, CORES.bit_length())]
    ways = {"": None} if options.cache == "warm" else {"": False, ", direct": True}
    contenders: dict[str, Rate] = {}
    for count in (None, *counts):
        for way, direct in ways.items():
            chosen = {"batch_size": batch_size, "order": order, "threads": count, "direct": direct}
            shown = "default" if count is None else f"{count} threads"
            contenders[f"{shown}{way}"] = partial(rate, manifest, options, chosen)
    if options.cache == "warm":
        contenders["plain"] = next(iter(loops(manifest, Batching(order, batch_size)).values()))
    rates = harness.medians(contenders, options.rounds)
    for one in contenders:
        yield {"contender": one, "rate": rates[one] / 1e6, "of default": rates[one] / rates["default"]}


def rate(manifest: Manifest, options: argparse.Namespace, chosen: dict[str, Any], _: int) -> float:
    """Return the bytes per second of the first epoch from a cold cache, of later ones from a warm cache."""
    page_cache.establish(options.cache, manifest.files_of("npy"), manifest.schema.logical_bytes)
    least_s, epochs = (WINDOW_S, -1) if options.cache == "warm" else (0.0, 0)
    began = perf_counter()
    with closing(StreamLoader(manifest.root, format="npy", device=options.device, **chosen)) as loader:
        while epochs < 1 or perf_counter() - began < least_s:
            for _ in loader:
                pass
            device_of(pick_device(options.device)).synchronize()
            epochs += 1
            if not epochs:
                began = perf_counter()
        return epochs * manifest.schema.logical_bytes / (perf_counter() - began)
