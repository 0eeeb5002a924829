"""Compare the disk limits that iobench measures with fio's, in MB/s.

Needs fio (Debian: apt install fio) and a prepared dataset. Both read its largest file in turns, past the page
cache.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from eval import harness
from eval.harness import Rate, Row, Trials
from iobench.host.hardware_limits import random_read, sequential_read

OPTIONS = {"rounds": (5, harness.ROUNDS), "name": ("", harness.NAME)}


def trials(options: argparse.Namespace) -> Trials:
    manifest = harness.dataset(options)
    files = (file for variant in manifest.artifacts for file in manifest.files_of(variant))
    file = max(files, key=lambda path: path.stat().st_size)

    def random(size: int) -> Rate:
        return lambda number: random_read(file, size, 1.0).bytes_per_s

    def sequential(number: int) -> float:
        return sequential_read(file, 1.0).bytes_per_s

    compared = partial(compare, file, options.rounds)
    return {
        "sequential": partial(compared, sequential, "read", [("1M", 8), ("1M", 32), ("4M", 32)]),
        "random-4KiB": partial(compared, random(4096), "randread", [("4k", 32), ("4k", 128)]),
        "random-148KiB": partial(compared, random(148 << 10), "randread", [("148k", 32)]),
    }


def compare(
    file: Path, rounds: int, limit: Rate, kind: str, settings: list[tuple[str, int]]
) -> Iterator[Row]:
    fio = {f"fio {size}, depth {depth}": harness.fio(file, kind, size, depth) for size, depth in settings}
    rates = harness.medians({"iobench": limit, **fio}, rounds)
    for name in fio:
        yield harness.against(rates, "iobench", name, 1.0)
