"""How often `iobench compare` is wrong: identical commands, also beside a neighbour, and a slower loader.

Run:  .venv/bin/python scripts/pairs.py [--pairs 40] [--rounds 15] [--size 5e6]

Each run is a process of its own. In every second pair a neighbour (a burner for each core and a reader of
the disk) starts in the middle: of the first run, and stays, or of the second one. Each quiet pair has a
third run in which every batch takes a tenth longer inside the loader. Prints how often which were called
what, by the very comparison behind `iobench compare`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import iobench
from iobench.bench.options import RunOptions
from iobench.formats import Rows
from iobench.loading.loaders.dataloader import DataLoaderEpochs
from iobench.loading.transfer import HostBatch
from iobench.results import record
from iobench.results.compare import compare

SLOWED_BY = 0.1
FORMAT, LOADER = "npy", "dataloader"
WANTED_SLOWER = 0.95  # of the quiet pairs, called slower at least
READ_BYTES = 1 << 20
BURN = "while True: pass"
READ = f"""
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
page = mmap.mmap(-1, {READ_BYTES})
while True:
    if os.readv(file, [page]) < {READ_BYTES}:
        os.lseek(file, 0, os.SEEK_SET)
"""


def one_run(chosen: argparse.Namespace) -> None:
    """The run that this process was started for."""
    if chosen.slowed:
        slow_down()
    manifest = iobench.find_dataset(chosen.data_dir, "pairs")
    options = RunOptions((FORMAT,), (LOADER,), device=("cpu",), rounds=str(chosen.rounds))
    iobench.run(manifest, options, out=chosen.one)


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


@contextmanager
def neighbour(file: Path) -> Iterator[None]:
    """A burner for each core, and a reader of the disk."""
    commands = [[BURN]] * len(os.sched_getaffinity(0)) + [[READ, str(file)]]
    busy = [subprocess.Popen([sys.executable, "-c", *command]) for command in commands]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def measured(chosen: argparse.Namespace, out: Path, *more: str) -> subprocess.Popen[bytes]:
    """A process that measures one run."""
    own = ["--rounds", str(chosen.rounds), "--data-dir", str(chosen.data_dir)]
    return subprocess.Popen([sys.executable, __file__, "--one", str(out), *own, *more])


def run_pair(chosen: argparse.Namespace, folder: Path, starts: str | None) -> None:
    """Both runs, and the slowed one of a quiet pair; `starts` names the run in which a neighbour does."""
    file = iobench.find_dataset(chosen.data_dir, "pairs").files_of(FORMAT)[0]
    names = ["base", "again"] if starts else ["base", "again", "slowed"]
    with busy_from(starts, chosen, folder, file) as begin:
        for name in names:
            process = measured(chosen, folder / f"{name}.jsonl", *(["--slowed"] * (name == "slowed")))
            begin(name, process)
            if process.wait():
                raise SystemExit(f"the run {name} failed")


@contextmanager
def busy_from(starts: str | None, chosen: argparse.Namespace, folder: Path, file: Path) -> Iterator[object]:
    """Starts a neighbour once half of the rounds of the named run are made."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def begin(name: str, process: subprocess.Popen[bytes]) -> None:
            if name != starts:
                return
            path = folder / f"{name}.jsonl"
            while process.poll() is None and lines_of(path) < chosen.rounds // 2:
                time.sleep(0.02)
            stack.enter_context(neighbour(file))

        yield begin


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def judge(folder: Path) -> None:
    """Print how often each kind of pair was called what."""
    called: dict[str, Counter[str]] = {}
    for pair in sorted(folder.glob("pair-*")):
        kind = json.loads((pair / "kind.json").read_text())
        base, *newer = (
            record.read(pair / f"{n}.jsonl")[0]
            for n in ("base", "again", "slowed")
            if (pair / f"{n}.jsonl").exists()
        )
        for name, records in zip(("again", "slowed"), newer, strict=False):
            (line,) = compare(base, {name: records}).lines
            called.setdefault(f"{kind}: {name}", Counter())[line.comparison.outcome] += 1
    for kind, outcomes in called.items():
        print(kind, dict(outcomes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--size", type=float, default=5e6)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("pairs"), help="the folder for all records")
    parser.add_argument("--judge", action="store_true", help="judge the records that are there")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--slowed", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        one_run(chosen)
        return
    if not chosen.judge:
        iobench.prepare(iobench.Synthetic(int(chosen.size)), [FORMAT], data_dir=chosen.data_dir, name="pairs")
        for number in range(chosen.pairs):
            starts = None if number % 2 == 0 else ("base", "again")[number // 2 % 2]
            folder = chosen.out / f"pair-{number:02}"
            folder.mkdir(parents=True)
            (folder / "kind.json").write_text(
                json.dumps(f"neighbour from the middle of {starts}" if starts else "quiet")
            )
            run_pair(chosen, folder, starts)
    judge(chosen.out)


if __name__ == "__main__":
    main()
