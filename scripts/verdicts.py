"""How often a verdict is wrong: a case against itself, and against itself slowed by a tenth.

Run:  .venv/bin/python scripts/verdicts.py [--comparisons 200] [--rounds 31] [--size 5e6]

In each round a case, the same once more, and the same with every batch delayed by a tenth of the
time it took inside the loader take turns, in an order that is shuffled. Prints how often each pair
was called what, by the very comparison behind the verdict of `iobench run`.
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
from iobench.bench import round_plan
from iobench.bench.epoch import RoundSpec, measure
from iobench.dataset.manifest import Manifest
from iobench.formats import Rows
from iobench.host import page_cache
from iobench.loading.host_to_device import HostBatch, HostToDevice
from iobench.loading.loaders import Epochs, Job
from iobench.loading.loaders.dataloader import DataLoaderEpochs, TorchDataLoader
from iobench.loading.order import Order
from iobench.results import stats

SLOWED_BY = 0.1
WANTED_SAME, WANTED_SLOWER = 0.05, 0.95  # called different at most, called slower at least


@dataclass(frozen=True)
class Slowed(TorchDataLoader):
    """Takes a tenth longer for each batch."""

    def open(self, job: Job) -> Epochs:
        """DataLoader's epochs, slowed."""
        return SlowedEpochs(self, job)


class SlowedEpochs(DataLoaderEpochs):
    def _epoch(self, asked: Sequence[Rows]) -> Iterator[HostBatch]:
        before = perf_counter()
        for batch in super()._epoch(asked):
            until = perf_counter() + SLOWED_BY * (perf_counter() - before)
            while perf_counter() < until:
                pass
            yield batch
            before = perf_counter()


CASES = {"case": TorchDataLoader(), "again": TorchDataLoader(), "slowed": Slowed()}


def rates(manifest: Manifest, rounds: int, first: int) -> dict[str, list[float]]:
    """Samples/s of each case over rounds, of which `first` is the number before, in which all take turns."""
    found: dict[str, list[float]] = {name: [] for name in CASES}
    transfer, files = HostToDevice(torch.device("cpu"), False), manifest.files_of("npy")
    job = Job(manifest.opener("npy"), Order())
    if page_cache.residency(files) < WARM_LIMIT:
        page_cache.warm(files)
    for number, name in round_plan.interleaved(list(CASES), lambda done: done < rounds, seed=first):
        wanted = RoundSpec(first + number, lambda batch: None, seconds=0.0)
        timing = measure(CASES[name], job, transfer, wanted).timing
        found[name].append(timing.samples / timing.epochs_s)
    return found


def collected(chosen: argparse.Namespace) -> list[dict[str, list[float]]]:
    """So many comparisons' rounds; kept in a file after each, if one is named."""
    manifest, _ = iobench.prepare(iobench.Synthetic(int(chosen.size)), ["npy"], data_dir=chosen.data_dir)
    rates(manifest, 1, 0)
    kept = []
    for number in range(chosen.comparisons):
        kept.append(rates(manifest, chosen.rounds, 1 + number * chosen.rounds))
        if chosen.out:
            chosen.out.write_text(json.dumps(kept))
    samples = manifest.schema.samples
    epoch_s = statistics.median(samples / statistics.median(found["case"]) for found in kept)
    print(f"epochs of {epoch_s:.3f} s")
    return kept


def judge(kept: list[dict[str, list[float]]]) -> None:
    """Print how often each pair was called what."""
    spread = statistics.median(stats.spread(found["case"]) for found in kept)
    print(f"{len(kept)} comparisons, rounds differ by {spread:.1%} within a case")
    called: dict[str, Counter[str]] = {"again": Counter(), "slowed": Counter()}
    for found in kept:
        for other, outcomes in called.items():
            one, base = (dict(enumerate(found[name])) for name in (other, "case"))
            outcomes[stats.compare_paired(one, base).outcome] += 1
    different = (called["again"]["faster"] + called["again"]["slower"]) / len(kept)
    slower = called["slowed"]["slower"] / len(kept)
    print(
        f"against itself {dict(called['again'])}: different {different:.1%}, wanted at most {WANTED_SAME:.0%}"
    )
    print(f"slowed {dict(called['slowed'])}: slower {slower:.1%}, wanted at least {WANTED_SLOWER:.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--size", type=float, default=5e6)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, help="keep all rounds in this file, as JSON")
    parser.add_argument("--judge", type=Path, help="judge the rounds in such a file instead of measuring")
    chosen = parser.parse_args()
    judge(json.loads(chosen.judge.read_text()) if chosen.judge else collected(chosen))


if __name__ == "__main__":
    main()
