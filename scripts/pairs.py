"""How often `iobench compare` is wrong: identical commands, also beside a neighbour, and a slower loader.

Run:  .venv/bin/python scripts/pairs.py [--pairs 40] [--rounds 21] [--size 5e6] [--patience 30]

Each run is a process of its own. In every second pair a neighbour (a burner for each core and a reader of
the disk) starts in the middle: of the first run, and stays, or of the second one. The other pairs wait for a
quiet machine, and have a third run in which every batch takes a tenth longer inside the loader. Prints how
often which were called what, by the very comparison behind `iobench compare`; pairs that were meant to be
quiet and were not, by their own records (other work, or processors that ran faster or slower), stand apart.
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
RUNS = ("base", "again", "slowed")
WANTED_SLOWER = 0.95  # of the quiet pairs, called slower at least
STEADY = 0.05  # of the pace of processors: what a pair may differ by to be called quiet
LOOK_S = 1.0  # at whether the machine is quiet
BURN = "while True: pass"
READ = """
import mmap, os, sys
file, page = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 1 << 20)
while True:
    if os.readv(file, [page]) < len(page):
        os.lseek(file, 0, os.SEEK_SET)
"""


def one_run(chosen: argparse.Namespace) -> None:
    """The run that this process was started for."""
    if chosen.slowed:
        slow_down()
    options = RunOptions((FORMAT,), (LOADER,), device=("cpu",), rounds=str(chosen.rounds))
    iobench.run(iobench.find_dataset(chosen.data_dir, DATASET), options, out=chosen.one)


def slow_down() -> None:
    """Have DataLoader take a tenth longer for each batch."""
    quick = DataLoaderEpochs._epoch

    def slowed(epochs: DataLoaderEpochs, asked: Sequence[Rows]) -> Iterator[HostBatch]:
        before = perf_counter()
        for batch in quick(epochs, asked):
            until = perf_counter() + SLOWED_BY * (perf_counter() - before)
            while perf_counter() < until:
                pass
            yield batch
            before = perf_counter()

    DataLoaderEpochs._epoch = slowed  # type: ignore[method-assign]


class Pair:
    """Two runs with one command, and a slower third one where no neighbour comes."""

    def __init__(self, chosen: argparse.Namespace, number: int) -> None:
        self._chosen = chosen
        self._busy_in = None if number % 2 == 0 else RUNS[number // 2 % 2]
        self._folder = chosen.out / f"pair-{number:03}"

    def measure(self) -> None:
        """Make its runs, each in a process."""
        self._folder.mkdir(parents=True)
        kind = f"neighbour from the middle of {self._busy_in}" if self._busy_in else "quiet"
        (self._folder / "kind").write_text(kind)
        with ExitStack() as ends:
            for name in RUNS[:2] if self._busy_in else RUNS:
                if not self._busy_in:
                    wait_for_quiet(self._chosen.patience)
                process = self._started(name)
                if name == self._busy_in:
                    self._call_neighbour(process, name, ends)
                if process.wait():
                    raise SystemExit(f"the run {name} of {self._folder} failed")

    def _started(self, name: str) -> subprocess.Popen[bytes]:
        own = ["--one", self._folder / f"{name}.jsonl", "--rounds", self._chosen.rounds]
        more = ["--data-dir", self._chosen.data_dir, *(["--slowed"] * (name == "slowed"))]
        return subprocess.Popen([sys.executable, __file__, *map(str, [*own, *more])])

    def _call_neighbour(self, process: subprocess.Popen[bytes], name: str, ends: ExitStack) -> None:
        """Start one once half of the rounds are made, who stays until the pair ends."""
        path = self._folder / f"{name}.jsonl"
        while process.poll() is None and lines_of(path) < self._chosen.rounds // 2:
            time.sleep(0.02)
        file = iobench.find_dataset(self._chosen.data_dir, DATASET).files_of(FORMAT)[0]
        for command in [[BURN]] * len(os.sched_getaffinity(0)) + [[READ, str(file)]]:
            busy = subprocess.Popen([sys.executable, "-c", *command])
            ends.callback(busy.wait)
            ends.callback(busy.kill)


def wait_for_quiet(patience_s: float) -> None:
    """Until other processes leave the machine alone, but no longer than that."""
    began = time.monotonic()
    while time.monotonic() - began < patience_s:
        watched = BackgroundLoadMonitor(Path.cwd())
        watched.start()
        time.sleep(LOOK_S)
        if (watched.stop().processors or 0.0) < BACKGROUND_CPU:
            return


def lines_of(path: Path) -> int:
    """Lines of a file, none where it is not there."""
    return len(path.read_text().splitlines()) if path.exists() else 0


def judge(folder: Path) -> None:
    """Print how often each kind of pair was called what."""
    called: dict[str, Counter[str]] = {}
    for pair in sorted(folder.glob("pair-*")):
        base, *newer = (pair / f"{name}.jsonl" for name in RUNS)
        for path in filter(Path.exists, newer):
            old, new, name = record.read(base)[0], record.read(path)[0], path.stem
            kind = kind_of((pair / "kind").read_text(), old + new)
            (line,) = compare(old, {name: new}).cases
            called.setdefault(f"{kind}: {name}", Counter())[line.comparison.outcome] += 1
    for kind, outcomes in sorted(called.items()):
        print(f"{kind}, {outcomes.total()} pairs: {dict(outcomes)}")
    same = [outcomes for kind, outcomes in called.items() if kind.endswith("again")]
    different = sum(outcomes["faster"] + outcomes["slower"] for outcomes in same)
    print(f"identical commands called different: {different} of {sum(o.total() for o in same)}, wanted 0")
    slowed = called.get("quiet: slowed", Counter[str]())
    if slowed.total():
        share = slowed["slower"] / slowed.total()
        print(f"slowed by a tenth, quiet: slower {share:.0%}, wanted at least {WANTED_SLOWER:.0%}")


def kind_of(meant: str, records: Sequence[Record]) -> str:
    """The kind of a pair: a machine that was meant to be quiet may have been neither quiet nor steady."""
    busy = any(sign.frequency([one.background for one in records]) for sign in background_signs.SIGNS)
    paces = [one.processor.cpu_speed_per_s or 1.0 for one in records]
    unsteady = stats.spread(paces) > STEADY or not 1 / (1 + STEADY) < _halves(paces) < 1 + STEADY
    return "not as quiet as meant" if meant == "quiet" and (busy or unsteady) else meant


def _halves(paces: Sequence[float]) -> float:
    """What the median of the second half is of that of the first: the newer run's of the base's."""
    middle = len(paces) // 2
    return statistics.median(paces[middle:]) / statistics.median(paces[:middle])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--size", type=float, default=5e6)
    parser.add_argument("--patience", type=float, default=30.0, help="seconds to wait for a quiet machine")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("pairs"), help="a new folder for all records")
    parser.add_argument("--judge", action="store_true", help="judge the records that are there")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--slowed", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        one_run(chosen)
        return
    if not chosen.judge:
        iobench.prepare(iobench.Synthetic(int(chosen.size)), [FORMAT], data_dir=chosen.data_dir, name=DATASET)
        for number in range(chosen.pairs):
            Pair(chosen, number).measure()
    judge(chosen.out)


if __name__ == "__main__":
    main()
