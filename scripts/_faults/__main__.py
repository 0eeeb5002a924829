"""Inject faults of every kind and count what goes wrong. Exits 1 where anything is bad.

Run:  scripts/faults [--quick] [--seed 0] [--kind NAME]... [--folder DIR] [--jobs N]

Each kind prints how many faults were tried and how many ended badly; each bad one is named on a
line of its own, with what has to be typed to see it again. A kind is one module in `kinds`.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from _faults import kinds
from _faults.registry import KINDS, Trials


def main() -> int:
    kinds.load()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="fewer of each kind, in less than a minute")
    parser.add_argument("--kind", action="append", choices=sorted(KINDS), help="only these; repeatable")
    parser.add_argument("--folder", type=Path, help="where to work, on the file system to try")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="kinds at once")
    chosen = parser.parse_args()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)
    names = chosen.kind or sorted(KINDS)
    print(f"{'kind':24} {'tried':>6} {'bad':>5} {'seconds':>8}", flush=True)
    if len(names) == 1:
        return 1 if run(names[0], chosen) else 0
    with ThreadPoolExecutor(chosen.jobs) as pool:
        return max(pool.map(functools.partial(_apart, chosen), names))


def _apart(chosen: argparse.Namespace, name: str) -> int:
    """Try one kind in a process of its own, which forks no threads of others; its exit code."""
    command = [sys.executable, "-m", "_faults", "--kind", name, "--seed", str(chosen.seed)]
    command += ["--quick"] * chosen.quick + (["--folder", str(chosen.folder)] if chosen.folder else [])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout.partition("\n")[2] + done.stderr, end="", flush=True)
    if done.returncode not in (0, 1):
        print(f"  {name} itself ended with {done.returncode}", flush=True)
    return 1 if done.returncode else 0


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
    print(f"{name:24} {tried:6} {len(problems):5} {time.monotonic() - started:8.1f}")
    print(*problems, sep="\n", end="\n" if problems else "", flush=True)
    return len(problems)


if __name__ == "__main__":
    sys.exit(main())
