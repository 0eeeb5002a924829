"""Measure the error rate of verdicts: a case against itself, and against a copy that is a tenth slower.

    .venv/bin/python scripts/verdicts.py [--comparisons 200] [--rounds 31] [--size 5e6]

Takes about 15 seconds for each comparison of 31 rounds. In each round three cases take turns in random order:
a case, the same case, and the case with every batch delayed by a tenth of its time inside the loader. Prints
the outcomes of the comparison behind the verdict of `iobench run`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch

import iobench
from iobench.base.thresholds import WARM_LIMIT
from iobench.bench.epoch import RoundSpec, measure
from iobench.bench.rounds import interleaved
from iobench.dataset.manifest import Manifest
from iobench.formats import Rows
from iobench.host import page_cache
from iobench.loading.host_to_device import HostBatch, HostToDevice
from iobench.loading.loaders import Epochs, Job
from iobench.loading.loaders.dataloader import DataLoaderEpochs, TorchDataLoader
from iobench.loading.order import Order
from iobench.results import stats

SLOWED_BY = 0.1
MAX_DIFFERENT, MIN_SLOWER = 0.05, 0.95  # of identical cases called different; of slowed ones called slower


@dataclass(frozen=True)
class Slowed(TorchDataLoader):
    """DataLoader, a tenth slower for each batch."""

    def open(self, job: Job) -> Epochs:
        """Return the slowed epochs."""
        return SlowedEpochs(self, job)


class SlowedEpochs(DataLoaderEpochs):
    def _epoch(self, request: Sequence[Rows]) -> Iterator[HostBatch]:
        before = perf_counter()
        for batch in super()._epoch(request):
            until = perf_counter() + SLOWED_BY * (perf_counter() - before)
            while perf_counter() < until:
                pass
            yield batch
            before = perf_counter()


CASES = {"case": TorchDataLoader(), "repeat": TorchDataLoader(), "slowed": Slowed()}


def rates(manifest: Manifest, rounds: int, first: int) -> dict[str, list[float]]:
    """Return samples/s of each case over interleaved rounds numbered from `first` + 1."""
    by_case: dict[str, list[float]] = {name: [] for name in CASES}
    transfer, files = HostToDevice(torch.device("cpu"), False), manifest.files_of("npy")
    job = Job(manifest.opener("npy"), Order())
    if page_cache.residency(files) < WARM_LIMIT:
        page_cache.warm(files)
    for number, name in interleaved(list(CASES), lambda done: done < rounds, seed=first):
        spec = RoundSpec(first + number, lambda batch: None, seconds=0.0)
        timing = measure(CASES[name], job, transfer, spec).timing
        by_case[name].append(timing.samples / timing.epochs_s)
    return by_case


def collect(options: argparse.Namespace) -> list[dict[str, list[float]]]:
    """Measure the comparisons; save them after each if there is an --out file."""
    manifest, _ = iobench.prepare(iobench.Synthetic(int(options.size)), ["npy"], data_dir=options.data_dir)
    rates(manifest, 1, 0)
    comparisons = []
    for number in range(options.comparisons):
        comparisons.append(rates(manifest, options.rounds, 1 + number * options.rounds))
        if options.out:
            options.out.write_text(json.dumps(comparisons))
    samples = manifest.schema.samples
    epoch_s = statistics.median(samples / statistics.median(measured["case"]) for measured in comparisons)
    print(f"epochs of {epoch_s:.3f} s")
    return comparisons


def evaluate(comparisons: list[dict[str, list[float]]]) -> None:
    """Print the outcomes of each pair of cases."""
    spread = statistics.median(stats.spread(measured["case"]) for measured in comparisons)
    print(f"{len(comparisons)} comparisons, spread of rounds within a case {spread:.1%}")
    called: dict[str, Counter[str]] = {"repeat": Counter(), "slowed": Counter()}
    for measured in comparisons:
        for other, outcomes in called.items():
            one, base = (dict(enumerate(measured[name])) for name in (other, "case"))
            outcomes[stats.compare_paired(one, base).outcome] += 1
    different = (called["repeat"]["faster"] + called["repeat"]["slower"]) / len(comparisons)
    slower = called["slowed"]["slower"] / len(comparisons)
    print(
        f"against itself {dict(called['repeat'])}: different {different:.1%} "
        f"(expected at most {MAX_DIFFERENT:.0%})"
    )
    print(f"slowed {dict(called['slowed'])}: slower {slower:.1%} (expected at least {MIN_SLOWER:.0%})")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--comparisons", type=int, default=200, help="number of comparisons")
    parser.add_argument("--rounds", type=int, default=31, help="rounds of each comparison")
    parser.add_argument("--size", type=float, default=5e6, help="float32 elements of the dataset")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="the data folder")
    parser.add_argument("--out", type=Path, help="save all rounds to this file, as JSON")
    parser.add_argument(
        "--evaluate", type=Path, help="evaluate the rounds in such a file instead of measuring"
    )
    options = parser.parse_args()
    evaluate(json.loads(options.evaluate.read_text()) if options.evaluate else collect(options))


if __name__ == "__main__":
    main()
