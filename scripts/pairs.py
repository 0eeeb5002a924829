"""Measure the error rate of `iobench compare`: identical runs, with and without load, and a slower loader.

    .venv/bin/python scripts/pairs.py [--pairs 40] [--rounds 21] [--size 5e6] [--max-wait 30]

Takes about a minute for each pair. Each run is its own process. In every second pair a background load (a
busy process for each core and a reader of the disk) starts in the middle of the first run, and stays, or of
the second run. The other pairs wait for an idle machine and have a third run in which the loader is a tenth
slower for each batch. Prints the outcomes of the comparison behind `iobench compare` for each kind of pair.
Pairs that were meant to be idle but were not, by their own records (background load, or a changed CPU speed),
are a separate kind.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter

import iobench
from iobench.base.thresholds import BACKGROUND_CPU
from iobench.bench.options import RunOptions
from iobench.formats import Rows
from iobench.host.background_load import BackgroundLoadMonitor
from iobench.loading.host_to_device import HostBatch
from iobench.loading.loaders.dataloader import DataLoaderEpochs
from iobench.results import background_signs, record, stats
from iobench.results.compare import compare
from iobench.results.record import Record

SLOWED_BY = 0.1
FORMAT, LOADER, DATASET = "npy", "dataloader", "pairs"
RUNS = ("base", "repeat", "slowed")
MIN_SLOWER = 0.95  # share of the idle slowed pairs that must be called slower
STEADY = 0.05  # largest relative change of CPU speed in an idle pair
SAMPLE_S = 1.0  # of background load
BURN = "while True: pass"
READ = """
import mmap, os, sys
file, page = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 1 << 20)
while True:
    if os.readv(file, [page]) < len(page):
        os.lseek(file, 0, os.SEEK_SET)
"""


def one_run(arguments: argparse.Namespace) -> None:
    """Make the run that this process was started for."""
    if arguments.slowed:
        slow_down()
    options = RunOptions((FORMAT,), (LOADER,), device=("cpu",), rounds=str(arguments.rounds))
    iobench.run(iobench.find_dataset(arguments.data_dir, DATASET), options, out=arguments.one)


def slow_down() -> None:
    """Make DataLoader a tenth slower for each batch."""
    original = DataLoaderEpochs._epoch

    def slowed(epochs: DataLoaderEpochs, request: Sequence[Rows]) -> Iterator[HostBatch]:
        before = perf_counter()
        for batch in original(epochs, request):
            until = perf_counter() + SLOWED_BY * (perf_counter() - before)
            while perf_counter() < until:
                pass
            yield batch
            before = perf_counter()

    DataLoaderEpochs._epoch = slowed  # type: ignore[method-assign]


class Pair:
    """Two runs with the same command, and a slower third run if there is no background load."""

    def __init__(self, options: argparse.Namespace, number: int) -> None:
        self._options = options
        self._busy_in = None if number % 2 == 0 else RUNS[number // 2 % 2]
        self._folder = options.out / f"pair-{number:03}"

    def measure(self) -> None:
        """Make the runs, each in a process."""
        self._folder.mkdir(parents=True)
        kind = f"load from the middle of {self._busy_in}" if self._busy_in else "idle"
        (self._folder / "kind").write_text(kind)
        with ExitStack() as ends:
            for name in RUNS[:2] if self._busy_in else RUNS:
                if not self._busy_in:
                    wait_for_idle(self._options.max_wait)
                process = self._start(name)
                if name == self._busy_in:
                    self._start_load(process, name, ends)
                if process.wait():
                    raise SystemExit(f"the run {name} of {self._folder} failed")

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        arguments = ["--one", self._folder / f"{name}.jsonl", "--rounds", self._options.rounds]
        more = ["--data-dir", self._options.data_dir, *(["--slowed"] * (name == "slowed"))]
        return subprocess.Popen([sys.executable, __file__, *map(str, [*arguments, *more])])

    def _start_load(self, process: subprocess.Popen[bytes], name: str, ends: ExitStack) -> None:
        """Start the load after half of the rounds; it runs until the pair ends."""
        path = self._folder / f"{name}.jsonl"
        while process.poll() is None and lines_of(path) < self._options.rounds // 2:
            time.sleep(0.02)
        file = iobench.find_dataset(self._options.data_dir, DATASET).files_of(FORMAT)[0]
        for command in [[BURN]] * len(os.sched_getaffinity(0)) + [[READ, str(file)]]:
            busy = subprocess.Popen([sys.executable, "-c", *command])
            ends.callback(busy.wait)
            ends.callback(busy.kill)


def wait_for_idle(max_wait_s: float) -> None:
    """Wait until there is no background load, up to a limit."""
    began = time.monotonic()
    while time.monotonic() - began < max_wait_s:
        monitor = BackgroundLoadMonitor(Path.cwd())
        monitor.start()
        time.sleep(SAMPLE_S)
        if (monitor.stop().processors or 0.0) < BACKGROUND_CPU:
            return


def lines_of(path: Path) -> int:
    """Return the number of lines of a file, 0 if it does not exist."""
    return len(path.read_text().splitlines()) if path.exists() else 0


def evaluate(folder: Path) -> None:
    """Print the outcomes of each kind of pair."""
    outcomes_of: dict[str, Counter[str]] = {}
    for pair in sorted(folder.glob("pair-*")):
        base, *newer = (pair / f"{name}.jsonl" for name in RUNS)
        for path in filter(Path.exists, newer):
            old, new, name = record.read(base)[0], record.read(path)[0], path.stem
            kind = kind_of((pair / "kind").read_text(), old + new)
            (line,) = compare(old, {name: new}).cases
            outcomes_of.setdefault(f"{kind}: {name}", Counter())[line.comparison.outcome] += 1
    for kind, outcomes in sorted(outcomes_of.items()):
        print(f"{kind}, {outcomes.total()} pairs: {dict(outcomes)}")
    same = [outcomes for kind, outcomes in outcomes_of.items() if kind.endswith("repeat")]
    different = sum(outcomes["faster"] + outcomes["slower"] for outcomes in same)
    print(f"identical commands called different: {different} of {sum(o.total() for o in same)} (expected 0)")
    slowed = outcomes_of.get("idle: slowed", Counter[str]())
    if slowed.total():
        share = slowed["slower"] / slowed.total()
        print(f"slowed by a tenth, idle: called slower {share:.0%} (expected at least {MIN_SLOWER:.0%})")


def kind_of(meant: str, records: Sequence[Record]) -> str:
    """Return the kind of a pair; a machine that was meant to be idle may have been busy or unsteady."""
    busy = any(sign.frequency([one.background for one in records]) for sign in background_signs.SIGNS)
    speeds = [one.processor.cpu_speed_per_s or 1.0 for one in records]
    unsteady = stats.spread(speeds) > STEADY or not 1 / (1 + STEADY) < _halves(speeds) < 1 + STEADY
    return "not as idle as meant" if meant == "idle" and (busy or unsteady) else meant


def _halves(speeds: Sequence[float]) -> float:
    """Return the median of the second half (the newer run) relative to that of the first (the base)."""
    middle = len(speeds) // 2
    return statistics.median(speeds[middle:]) / statistics.median(speeds[:middle])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=40, help="number of pairs")
    parser.add_argument("--rounds", type=int, default=21, help="rounds of each run")
    parser.add_argument("--size", type=float, default=5e6, help="float32 elements of the dataset")
    parser.add_argument("--max-wait", type=float, default=30.0, help="seconds to wait for an idle machine")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="the data folder")
    parser.add_argument("--out", type=Path, default=Path("pairs"), help="a new folder for all records")
    parser.add_argument(
        "--evaluate", action="store_true", help="evaluate the records in --out without measuring"
    )
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--slowed", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one_run(options)
        return
    if not options.evaluate:
        iobench.prepare(
            iobench.Synthetic(int(options.size)), [FORMAT], data_dir=options.data_dir, name=DATASET
        )
        for number in range(options.pairs):
            Pair(options, number).measure()
    evaluate(options.out)


if __name__ == "__main__":
    main()
