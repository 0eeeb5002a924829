"""Measure the error rate of `iobench compare`: identical runs, with and without load, and a slower loader.

Each run is a command. In every second pair a background load (a busy process for each core and a reader of
the disk) starts in the middle of the first run, and stays, or of the second run. The other pairs wait for an
idle machine and have a third run in which the loader is a tenth slower for each batch. Pairs that were meant
to be idle but were not, by their own records (background load, or a changed CPU speed), are a separate kind.
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
from functools import partial
from pathlib import Path

import iobench
from eval.harness import Row, Trials
from iobench.base.thresholds import BACKGROUND_CPU
from iobench.host.background_load import BackgroundLoadMonitor
from iobench.results import background_signs, record_file, stats
from iobench.results.compare import compare
from iobench.results.record import Record

OPTIONS = {
    "pairs": (40, "number of pairs"),
    "rounds": (21, "rounds of each run"),
    "size": (5e6, "float32 elements of the dataset"),
    "max_wait": (30.0, "seconds to wait for an idle machine"),
    "records": (Path("pairs"), "a new folder for the records of all runs"),
}
RUNS = ("base", "repeat", "slowed")
MIN_SLOWER = 0.95  # share of the idle slowed pairs that must be called slower
STEADY = 0.05  # largest relative change of CPU speed in an idle pair
SAMPLE_S = 1.0  # of background load
IOBENCH = "from iobench.__main__ import main; main()"
SLOWED = f"from eval.slowed import slow_down; slow_down(); {IOBENCH}"
BURN = "while True: pass"
READ = """
import mmap, os, sys
file, page = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 1 << 20)
while True:
    if os.readv(file, [page]) < len(page):
        os.lseek(file, 0, os.SEEK_SET)
"""


def trials(options: argparse.Namespace) -> Trials:
    source = iobench.Synthetic(int(options.size))
    manifest, _ = iobench.prepare(source, ["npy"], data_dir=options.data_dir, name="pairs")
    file = manifest.files_of("npy")[0]
    return {f"{number:03}": partial(pair, options, number, file) for number in range(options.pairs)}


def pair(options: argparse.Namespace, number: int, file: Path) -> Iterator[Row]:
    """Make two runs with the same command, and a slower third run if there is no background load."""
    busy_in = None if number % 2 == 0 else RUNS[number // 2 % 2]
    folder: Path = options.records / f"pair-{number:03}"
    folder.mkdir(parents=True)
    runs = {name: str(folder / f"{name}.jsonl") for name in (RUNS[:2] if busy_in else RUNS)}
    with ExitStack() as ends:
        for name, out in runs.items():
            if not busy_in:
                wait_for_idle(options.max_wait)
            process = start(options, name, out)
            if name == busy_in:
                while process.poll() is None and lines_of(Path(out)) < options.rounds // 2:
                    time.sleep(0.02)
                start_load(file, ends)
            if process.wait():
                raise RuntimeError(f"the run {name} of {folder} failed")
    yield {"meant": f"load from the middle of {busy_in}" if busy_in else "idle", "runs": runs}


def start(options: argparse.Namespace, name: str, out: str) -> subprocess.Popen[bytes]:
    words = "--name pairs --format npy --loader dataloader --device cpu".split()
    where = ["--data-dir", str(options.data_dir), "--out", out, "--rounds", str(options.rounds)]
    command = [sys.executable, "-c", SLOWED if name == "slowed" else IOBENCH, "run", *words, *where]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def start_load(file: Path, ends: ExitStack) -> None:
    """Keep each core and the disk busy until the pair ends."""
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


def evaluated(measured: Row) -> Row:
    """Return the kind of a pair, and the outcomes of comparing its later runs with the first."""
    records = {name: record_file.read(Path(path))[0] for name, path in measured["runs"].items()}
    base, everything = records.pop("base"), [one for some in records.values() for one in some]
    outcomes = dict.fromkeys(RUNS[1:])
    for name, newer in records.items():
        (line,) = compare(base, {name: newer}).cases
        outcomes[name] = line.comparison.outcome
    kind = kind_of(measured["meant"], base + everything)
    return {"trial": measured["trial"], "kind": kind, **outcomes}


def kind_of(meant: str, records: Sequence[Record]) -> str:
    """Return the kind of a pair; a machine that was meant to be idle may have been busy or unsteady."""
    busy = any(sign.frequency([one.background for one in records]) for sign in background_signs.SIGNS)
    speeds = [one.processor.cpu_speed_per_s or 1.0 for one in records]
    unsteady = stats.spread(speeds) > STEADY or not 1 / (1 + STEADY) < _halves(speeds) < 1 + STEADY
    return "not as idle as meant" if meant == "idle" and (busy or unsteady) else meant


def _halves(speeds: Sequence[float]) -> float:
    """Return the median of the second half (the newer runs) relative to that of the first."""
    middle = len(speeds) // 2
    return statistics.median(speeds[middle:]) / statistics.median(speeds[:middle])


def summary(rows: Sequence[Row]) -> Iterator[str]:
    for kind, name in sorted({(row["kind"], name) for row in rows for name in RUNS[1:] if row[name]}):
        outcomes = Counter(row[name] for row in rows if row["kind"] == kind and row[name])
        yield f"{kind}, {name}, {outcomes.total()} pairs: {dict(outcomes)}"
    different = sum(row["repeat"] in ("faster", "slower") for row in rows)
    yield f"identical commands called different: {different} of {len(rows)} (expected 0)"
    idle = [row["slowed"] for row in rows if row["kind"] == "idle" and row["slowed"]]
    if idle:
        share = idle.count("slower") / len(idle)
        yield f"slowed by a tenth, idle: called slower {share:.0%} (expected at least {MIN_SLOWER:.0%})"
