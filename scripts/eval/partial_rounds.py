"""Compare rounds that are parts of an epoch with whole epochs: the ratio of their samples per second.

Each trial is a format, a loader, a cache state and an order. In each round the whole epoch and three parts
take turns in random order, until `--seconds` are over, but twice at least. A part takes `--window` seconds,
as a round of `iobench run --round-seconds` does, or a quarter of the epoch where that is less. A trial
whose epoch takes longer than `--longest` is skipped, and one whose parts would be shorter than any round of
a run.

The ratio is the median over the rounds of the parts' rate to the whole epoch's, where that of three parts is
their samples over their seconds: the mean of rates would be too fast on a machine whose speed varies. The
median of the ratios should lie within 0.98 and 1.02, each within 0.93 and 1.07. `scatter` is the half range
of the parts and of the whole epochs, relative to their medians.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial

import torch

import iobench
from eval.harness import Row, Trials
from iobench import Manifest
from iobench.base.thresholds import ROUND_S
from iobench.bench.epoch import RoundSpec, measure
from iobench.bench.policies import interleaved
from iobench.host import page_cache
from iobench.loading import loaders
from iobench.loading.batching import Batching
from iobench.loading.host_to_device import HostToDevice
from iobench.loading.loaders import Job

OPTIONS = {
    "size": (5.4e8, "float32 elements of the dataset; the default makes 2 GiB"),
    "sample": (128, "float32 elements of a sample"),
    "window": (1.0, "most seconds of a part"),
    "rounds": (7, "most rounds of each contender"),
    "seconds": (20.0, "seconds after which a trial begins no more rounds"),
    "longest": (20.0, "seconds of an epoch, beyond which a trial is skipped"),
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
LEAST_ROUNDS, PARTS = 2, 3  # of a trial, and of a round
FIRST_BATCHES = 200  # of the window whose rate says how long an epoch takes


def trials(options: argparse.Namespace) -> Trials:
    manifest, _ = iobench.prepare(
        iobench.Synthetic(int(options.size), (options.sample,)), list(FORMATS), data_dir=options.data_dir
    )
    return {
        f"{variant}-{word}-{cache}-{order}": partial(
            Trial(manifest, variant, word, cache, order).row, options
        )
        for variant, word, cache in itertools.product(FORMATS, LOADERS, page_cache.MODES)
        for loader in [loaders.parse(word)]
        if loader.reads(manifest.opener(variant).format)
        for order in loader.orders
    }


class Trial:
    """Rounds of one case, whole epochs and parts of them."""

    def __init__(self, manifest: Manifest, variant: str, word: str, cache: str, order: str) -> None:
        self._manifest, self._variant, self._cache = manifest, variant, cache
        self._job = Job(manifest.opener(variant), Batching(order).row_order(manifest.schema))
        self._loader, self._transfer = loaders.parse(word).on("cpu"), HostToDevice(torch.device("cpu"), False)

    def row(self, options: argparse.Namespace) -> Iterator[Row]:
        """Yield the ratio of the rate of parts to that of whole epochs."""
        epoch_s = min(self._round(0, FIRST_BATCHES)[0] for _ in range(2))  # the first one warms up
        window_s = min(options.window, epoch_s / 4)
        if epoch_s > options.longest or window_s < ROUND_S:
            yield {"skipped": f"an epoch takes {epoch_s:.2g} s"}
            return
        window = math.ceil(self._job.order.length(self._manifest.schema.samples, 0) * window_s / epoch_s)
        rounds: dict[int, dict[bool, list[float]]] = {}
        began, share = time.monotonic(), 1.0

        def more(done: int) -> bool:
            late = time.monotonic() - began > options.seconds
            return done < (LEAST_ROUNDS if late else options.rounds)

        for number, whole in interleaved([True, *[False] * PARTS], more):
            seconds, samples, share_now = self._round(number, None if whole else window)
            share = min(share, share_now)
            rounds.setdefault(number, {True: [], False: []})[whole].append(samples / seconds)
        ratios = [statistics.harmonic_mean(one[False]) / one[True][0] for one in rounds.values()]
        rates = [[rate for one in rounds.values() for rate in one[whole]] for whole in (True, False)]
        whole_rate, part_rate = map(statistics.median, rates)
        scatter = max((max(one) - min(one)) / 2 / statistics.median(one) for one in rates)
        yield {
            "whole": whole_rate,
            "parts": part_rate,
            "share": share,
            "ratio": statistics.median(ratios),
            "scatter": scatter,
        }

    def _round(self, number: int, batches: int | None) -> tuple[float, float, float]:
        """Return seconds and samples of an epoch, and the share of it that was measured."""
        manifest, warm = self._manifest, self._cache == "warm"
        page_cache.establish(self._cache, manifest.files_of(self._variant), manifest.schema.logical_bytes)
        spec = RoundSpec(number, lambda batch: None, seconds=0.0, batches=batches, warm=warm)
        timing = measure(self._loader, self._job, self._transfer, spec).timing
        if timing.partial is None:
            return timing.epochs_s / timing.epochs, timing.samples / timing.epochs, 1.0
        samples = timing.partial.epoch_samples
        return timing.partial.epoch_s, samples, timing.samples / timing.epochs / samples


def summary(rows: Sequence[Row]) -> list[str]:
    """Return the median and the extremes of the ratios, and the trials outside of the limits."""
    measured = [row for row in rows if "ratio" in row]
    ratios = [row["ratio"] for row in measured]
    if not ratios:
        return [f"all {len(rows)} trials skipped"]
    median, low, high = statistics.median(ratios), min(ratios), max(ratios)
    outside = [row["trial"] for row in measured if not EACH[0] <= row["ratio"] <= EACH[1]]
    verdict = "within" if MEDIAN[0] <= median <= MEDIAN[1] and not outside else "outside"
    return [
        f"{len(measured)} trials, {len(rows) - len(measured)} skipped: "
        f"median {median:.3f}, from {low:.3f} to {high:.3f}: {verdict} the limits",
        *([f"outside {EACH[0]} to {EACH[1]}: {', '.join(outside)}"] if outside else []),
    ]
