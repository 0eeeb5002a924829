"""Inject faults of every kind and count what goes wrong. Exits 1 where anything is bad.

Run:  scripts/faults [--quick] [--seed 0] [--kind NAME]... [--folder DIR] [--jobs N]

Each kind prints how many faults were tried and how many ended badly; each bad one is named on a
line of its own, with what has to be typed to see it again. A kind is one module in `kinds`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path

from _faults import kinds, ready
from _faults.registry import KINDS, Trials


def main() -> int:
    kinds.load()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="fewer of each kind, in less than a minute")
    parser.add_argument("--kind", action="append", choices=sorted(KINDS), help="only these; repeatable")
    parser.add_argument("--folder", type=Path, help="where to work, on the file system to try")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="kinds at once")
    chosen = parser.parse_args()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)
    names = chosen.kind or sorted(KINDS)
    print(f"{'kind':24} {'tried':>6} {'bad':>5} {'seconds':>8}", flush=True)
    ready.load()
    ready.hasten()
    return side_by_side(names, chosen)


def side_by_side(names: Sequence[str], chosen: argparse.Namespace) -> int:
    """Try each kind in a process of its own, which has everything imported; 1 where anything is bad."""
    fork = multiprocessing.get_context("fork")
    waiting, bad = list(names), False
    running: list[ForkProcess] = []
    while waiting or running:
        while waiting and len(running) < chosen.jobs:
            process = fork.Process(target=_apart, args=(waiting[0], chosen), name=waiting.pop(0))
            process.start()
            running.append(process)
        wait([process.sentinel for process in running])
        for process in [process for process in running if not process.is_alive()]:
            running.remove(process)
            bad |= process.exitcode != 0
            if process.exitcode not in (0, 1):
                print(f"  {process.name} itself ended with {process.exitcode}", flush=True)
    return int(bad)


def _apart(name: str, chosen: argparse.Namespace) -> None:
    raise SystemExit(1 if run(name, chosen) else 0)


def run(name: str, chosen: argparse.Namespace) -> int:
    """Try one kind and print its line; how many were bad."""
    again = f"--kind {name} --seed {chosen.seed}{' --quick' if chosen.quick else ''}"
    started, tried, problems = time.monotonic(), 0, []
    with tempfile.TemporaryDirectory(prefix="iobench-faults-", dir=chosen.folder) as folder:
        trials = Trials(Path(folder), random.Random(f"{name} {chosen.seed}"), chosen.quick)
        for what, problem in KINDS[name].tried(trials):
            tried += 1
            if problem is not None:
                problems.append(f"  {what}: {problem} ({again})")
    # a kind that tries nothing proves nothing
    problems += [] if tried else [f"  nothing was tried ({again})"]
    line = f"{name:24} {tried:6} {len(problems):5} {time.monotonic() - started:8.1f}"
    print(line, *problems, sep="\n", flush=True)
    return len(problems)


if __name__ == "__main__":
    sys.exit(main())
