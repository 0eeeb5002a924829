"""Measure the error rate of verdicts: a case against itself, and against a copy that is a tenth slower.

In each round three cases take turns in random order: a case, the same case, and the case with every batch
delayed by a tenth of its time inside the loader. The outcomes are those of the comparison behind the verdict
of `iobench run`.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import iobench
from eval import harness
from eval.harness import Row, Trials
from eval.slowed import slowed_epoch
from iobench import Manifest
from iobench.base.thresholds import WARM_LIMIT
from iobench.bench.rounds import interleaved
from iobench.host import page_cache
from iobench.loading.loaders import Epochs, Job
from iobench.loading.loaders.dataloader import DataLoaderEpochs, TorchDataLoader
from iobench.loading.order import Order
from iobench.results import stats

OPTIONS = {
    "comparisons": (200, "number of comparisons"),
    "rounds": (31, "rounds of each comparison"),
    "size": (5e6, "float32 elements of the dataset"),
}
MAX_DIFFERENT, MIN_SLOWER = 0.05, 0.95  # of identical cases called different; of slowed ones called slower


@dataclass(frozen=True)
class Slowed(TorchDataLoader):
    """DataLoader, a tenth slower for each batch."""

    def open(self, job: Job) -> Epochs:
        return SlowedEpochs(self, job)


class SlowedEpochs(DataLoaderEpochs):
    _epoch = slowed_epoch


CASES = {"case": TorchDataLoader(), "repeat": TorchDataLoader(), "slowed": Slowed()}


def trials(options: argparse.Namespace) -> Trials:
    manifest, _ = iobench.prepare(iobench.Synthetic(int(options.size)), ["npy"], data_dir=options.data_dir)
    list(rates(manifest, 1, 0))
    compared = partial(rates, manifest, options.rounds)
    return {f"{n:03}": partial(compared, 1 + n * options.rounds) for n in range(options.comparisons)}


def rates(manifest: Manifest, rounds: int, first: int) -> Iterator[Row]:
    """Yield samples/s of each case over interleaved rounds numbered from `first` + 1."""
    by_case: dict[str, list[float]] = {name: [] for name in CASES}
    job, files = Job(manifest.opener("npy"), Order()), manifest.files_of("npy")
    epochs = {name: harness.epochs_of(loader, job) for name, loader in CASES.items()}
    if page_cache.residency(files) < WARM_LIMIT:
        page_cache.warm(files)
    for number, name in interleaved(list(CASES), lambda done: done < rounds, seed=first):
        timing = epochs[name](first + number).timing
        by_case[name].append(timing.samples / timing.epochs_s)
    yield by_case


def evaluated(measured: Row) -> Row:
    """Return the outcome of each comparison."""
    base = dict(enumerate(measured["case"]))
    outcomes = {
        name: stats.compare_paired(dict(enumerate(measured[name])), base).outcome
        for name in ("repeat", "slowed")
    }
    return {"trial": measured["trial"], **outcomes, "spread": stats.spread(measured["case"])}


def summary(rows: Sequence[Row]) -> Iterator[str]:
    repeat, slowed = (Counter(row[name] for row in rows) for name in ("repeat", "slowed"))
    spread = statistics.median(row["spread"] for row in rows)
    different, slower = (repeat["faster"] + repeat["slower"]) / len(rows), slowed["slower"] / len(rows)
    yield f"{len(rows)} comparisons, spread of rounds within a case {spread:.1%}"
    yield f"against itself {dict(repeat)}: different {different:.1%} (expected at most {MAX_DIFFERENT:.0%})"
    yield f"slowed {dict(slowed)}: slower {slower:.1%} (expected at least {MIN_SLOWER:.0%})"
