"""Measure the error rate of verdicts, on simulated rounds and on measured ones.

Simulated: cases whose true speeds are known, a quarter of them level within a tenth, with noise of four kinds
whose robust spread is 20 to 90 %. Measured: a case, the same case, and the case slowed by a tenth inside the
loader, which take turns in random order. Gate: `compare --run BASE HEAD --fail-on slower:10%` over a loader
and the same with 0 or 15 % more work, on the machine as it is and beside a process that keeps a core busy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from time import perf_counter

import numpy as np

import iobench
from eval import harness
from eval.harness import Row, Trials
from iobench.base.thresholds import ROUND_S
from iobench.bench.policies import interleaved
from iobench.formats import Rows
from iobench.host import page_cache
from iobench.loading.host_to_device import HostBatch
from iobench.loading.loaders import Epochs, Job
from iobench.loading.loaders.dataloader import DataLoaderEpochs, TorchDataLoader
from iobench.loading.order import Order
from iobench.results.stats import compared, verdict_on

OPTIONS = {
    "simulated": (2000, "simulated trials of each number of rounds and cases"),
    "measured": (200, "measured comparisons"),
    "rounds": (31, "rounds of each measured comparison"),
    "size": (5e6, "float32 elements of the dataset"),
    "gates": (20, "comparisons of each kind of gate"),
    "max_time": (60, "seconds of each gate"),
}
SLOWED_BY = 0.1
LOADER = """import numpy, torch

class Sorted(torch.utils.data.Dataset):
    values = numpy.random.default_rng(0).random(4096)

    def __len__(self):
        return 512

    def __getitem__(self, index):
        return torch.from_numpy([numpy.sort(self.values) for _ in range({sorts})][0])

def make():
    return torch.utils.data.DataLoader(Sorted(), batch_size=32)
"""


class Slowed(TorchDataLoader):
    """DataLoader, a tenth slower for each batch."""

    def open(self, job: Job) -> Epochs:
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


def trials(options: argparse.Namespace) -> Trials:
    grid = {f"{n} rounds, {k} cases": (n, k) for n in (5, 8, 15) for k in (4, 12, 24)}
    simulations = {name: partial(simulated, options.simulated, *sizes) for name, sizes in grid.items()}
    gates = {
        f"gate: {more} % more work, {busy} cores busy": partial(gate, options, more, busy)
        for more in (0, 15)
        for busy in (0, 1)
    }
    return simulations | {"measured": partial(measured, options)} | gates


def simulated(count: int, rounds: int, cases: int) -> Iterator[Row]:
    """Yield how often the leaders hold the truly fastest, and their number against the pairwise rule's."""
    rng, totals = np.random.default_rng(rounds * 1000 + cases), Counter[str]()
    for trial in range(count):
        level = np.arange(cases) < max(2, cases // 4)
        time = np.where(level, rng.uniform(0, 0.1, cases), np.log(rng.uniform(1.2, 50, cases)))
        time[0], spread = 0.0, rng.uniform(0.2, 0.9, (cases, 1))
        noise = spread * rng.normal(size=(cases, rounds))
        noise = (
            noise,
            spread * rng.standard_t(3, (cases, rounds)) / 1.13,  # heavy tails
            noise - np.log(3) * (rng.random((cases, rounds)) < 0.15),  # some rounds take three times as long
            0.6 * noise + 0.4 * rng.normal(size=(1, rounds)),  # background load that cases of a round share
        )[trial % 4]
        rates = {str(n): dict(enumerate(row)) for n, row in enumerate(np.exp(noise - time[:, None]))}
        verdict = verdict_on(rates)
        right = all(np.log(least) <= time[int(case)] for case, least in verdict.at_least.items())
        best, *others = (rates[case] for case in (verdict.fastest, *verdict.relative))
        pairs = (compared(best, other, cases - 1).outcome != "faster" for other in others)
        held, many = "0" in verdict.leaders, len(verdict.leaders)
        totals += Counter(held=held, right=right, leaders=many, pairwise=1 + sum(pairs))
    yield {name: totals[name] / count for name in ("held", "right", "leaders", "pairwise")}


def measured(options: argparse.Namespace) -> Iterator[Row]:
    """Yield how often both identical cases lead, and the slowed one does not."""
    manifest, _ = iobench.prepare(iobench.Synthetic(int(options.size)), ["npy"], data_dir=options.data_dir)
    job, totals = Job(manifest.opener("npy"), Order()), Counter[str]()
    epochs = {name: harness.epochs_of(loader, job, ROUND_S) for name, loader in CASES.items()}
    page_cache.warm(manifest.files_of("npy"))
    for trial in range(options.measured):
        rates: dict[str, dict[int, float]] = {name: {} for name in CASES}
        for number, name in interleaved(list(CASES), lambda done: done < options.rounds, seed=trial):
            timing = epochs[name](1 + trial * options.rounds + number).timing
            rates[name][number] = timing.samples / timing.epochs_s
        leaders = verdict_on(rates).leaders
        totals += Counter(held={"case", "repeat"} <= {*leaders}, right="slowed" not in leaders)
    yield {name: totals[name] / options.measured for name in ("held", "right")}


def gate(options: argparse.Namespace, more: int, busy: int) -> Iterator[Row]:
    """Yield how often a gate of 10 % passes, fails and says nothing where HEAD does `more` % more."""
    base, head = (options.folder / side for side in ("base", "head"))
    for folder, sorts in ((base, 20), (head, 20 + more // 5)):
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text(LOADER.format(sorts=sorts))
    words = ["compare", "--run", f"{base}/train.py:make", f"{head}/train.py:make", "--fail-on", "slower:10%"]
    command = [sys.executable, "-m", "iobench", *words, "--max-time", str(options.max_time), "--json"]
    codes, ratios = Counter[int](), list[float]()
    with harness.background_load(busy):
        for _ in range(options.gates):
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            codes[done.returncode] += 1
            ratios += [case["comparison"]["ratio"]["median"] for case in json.loads(done.stdout)["cases"]]
    outcomes = {"passed": codes[0], "slower": codes[1], "nothing said": codes[3]}
    yield outcomes | {"ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}


def summary(rows: Sequence[Row]) -> Iterator[str]:
    if held := [row["held"] for row in rows if "held" in row]:
        yield f"leaders hold the truly fastest in at least {min(held):.1%} (at least 95 %)"
