"""Compare StreamLoader with plain loops over a file system on which each request waits, in MB/s.

Samples of 150 KB (64 MB) are prepared in the data folder, and read through a user-space file system that
waits before each read (of at most 128 KiB, as the kernel asks for them) and before each file is opened. Every
epoch is cold, with the contenders of `stream_cold`. Needs mfusepy and fuse3.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from functools import partial

from eval import harness, stream_cold
from eval.delayed_mount import delayed_mount
from eval.harness import Row, Trials
from iobench import Manifest
from iobench.bench.rounds import interleaved
from iobench.loading.batching import Batching
from iobench.loading.order import ORDERS

OPTIONS = {
    "rounds": (5, harness.ROUNDS),
    "read_ms": (2.0, "wait before each read, in ms"),
    "open_ms": (1.0, "wait before each file is opened, in ms"),
    "format": ("npy", "the stored format"),
}
SAMPLE_BYTES, TOTAL, BATCH_SIZE = 3 * 224 * 224, int(64e6), 64


def trials(options: argparse.Namespace) -> Trials:
    return {order: partial(compare, options, order) for order in ORDERS}


def compare(options: argparse.Namespace, order: str) -> Iterator[Row]:
    """Yield the median rate of each contender, and its ratio to the best."""
    whole = stream_cold.prepared(options, SAMPLE_BYTES, TOTAL)
    part = stream_cold.prepared(options, SAMPLE_BYTES, 3 * BATCH_SIZE * SAMPLE_BYTES)
    seen: dict[str, list[float]] = {one: [] for one in stream_cold.CONTENDERS}
    with delayed_mount(options.data_dir, options.read_ms, options.open_ms) as mounted:
        manifest, few = (Manifest.load(mounted / one.name) for one in (whole, part))
        for _, one in interleaved([*seen], lambda done: done < options.rounds):
            of = partial(
                stream_cold.epoch_of, one, variant=options.format, batching=Batching(order, BATCH_SIZE)
            )
            timed = partial(stream_cold.timed, of, manifest, few, options.format, 1)
            seen[one].append(stream_cold.apart(timed)[1])
    rates = {one: TOTAL / statistics.median(taken) for one, taken in seen.items()}
    best = max(rates.values())
    for one, rate in rates.items():
        yield {"order": order, "contender": one, "rate": rate / 1e6, "of best": rate / best}
