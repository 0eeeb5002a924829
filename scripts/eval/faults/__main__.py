"""Inject faults of every kind into iobench and count those that it handles wrongly.

    scripts/faults [--quick] [--seed 0] [--kind NAME]... [--folder DIR] [--jobs N]

Takes two to five minutes with --quick on two cores; without it each kind has 7 to 60 times as many faults.
Every kind prints one line: the number of injected faults and of failures. Each failure is one more line
with the options that reproduce it.
Exit code 1 after any failure. A kind of fault is a function in a module of `kinds`.
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

from eval.faults import fuzz, kinds, preload
from eval.faults.registry import KINDS, Trials


def main() -> int:
    kinds.load()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the random choices")
    parser.add_argument("--quick", action="store_true", help="fewer faults of each kind")
    parser.add_argument(
        "--kind", action="append", help="only this kind, or these targets of --fuzz; repeatable"
    )
    parser.add_argument("--fuzz", type=float, metavar="SECONDS", help="fuzz the parsers instead")
    parser.add_argument("--folder", type=Path, help="work here, to test this file system")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="kinds to run at once")
    options = parser.parse_args()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if options.fuzz:
        preload.load()
        preload.shorten_rounds()
        return fuzz.fuzz(options)
    names = options.kind or sorted(KINDS)
    if unknown := sorted({*names} - {*KINDS}):
        parser.error(f"--kind {' '.join(unknown)}: choose from {' '.join(sorted(KINDS))}")
    print(f"{'kind':24} {'faults':>6} {'failures':>8} {'seconds':>8}", flush=True)
    preload.load()
    preload.shorten_rounds()
    return run_kinds(names, options)


def run_kinds(names: Sequence[str], options: argparse.Namespace) -> int:
    """Run each kind in a forked process that has everything imported; return the exit code."""
    fork = multiprocessing.get_context("fork")
    waiting, failed = list(names), False
    running: list[ForkProcess] = []
    while waiting or running:
        while waiting and len(running) < options.jobs:
            process = fork.Process(target=_kind_process, args=(waiting[0], options), name=waiting.pop(0))
            process.start()
            running.append(process)
        wait([process.sentinel for process in running])
        for process in [process for process in running if not process.is_alive()]:
            running.remove(process)
            failed |= process.exitcode != 0
            if process.exitcode not in (0, 1):
                print(
                    f"  {process.name}: the process of this kind ended with exit {process.exitcode}",
                    flush=True,
                )
    return int(failed)


def _kind_process(name: str, options: argparse.Namespace) -> None:
    raise SystemExit(1 if run(name, options) else 0)


def run(name: str, options: argparse.Namespace) -> int:
    """Inject the faults of one kind and print its line; return the number of failures."""
    reproduce = f"--kind {name} --seed {options.seed}{' --quick' if options.quick else ''}"
    started, injected, failures = time.monotonic(), 0, []
    with tempfile.TemporaryDirectory(prefix="iobench-faults-", dir=options.folder) as folder:
        trials = Trials(Path(folder), random.Random(f"{name} {options.seed}"), options.quick)
        for fault, problem in KINDS[name](trials):
            injected += 1
            if problem is not None:
                failures.append(f"  {fault}: {problem} ({reproduce})")
    # a kind without faults would pass
    failures += [] if injected else [f"  no fault was injected ({reproduce})"]
    line = f"{name:24} {injected:6} {len(failures):8} {time.monotonic() - started:8.1f}"
    print(line, *failures, sep="\n", flush=True)
    return len(failures)


if __name__ == "__main__":
    sys.exit(main())
