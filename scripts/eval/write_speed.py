"""Compare the write speed of `iobench prepare` with `dd conv=fsync` of as many bytes on the same disk.

Prepare and dd take turns. Writes and deletes 50 times 800 MB by default.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import iobench
from eval import harness
from eval.harness import Row, Trials

OPTIONS = {"size": (2e8, "float32 elements"), "rounds": (5, harness.ROUNDS)}
VARIANTS = ("npy", "memmap", "hdf5:chunk_bytes=0", "hdf5", "lmdb")
MIB = 2**20


def trials(options: argparse.Namespace) -> Trials:
    folder = options.data_dir / "write-speed"
    folder.mkdir(parents=True)
    options.ends.callback(shutil.rmtree, folder)
    source = iobench.Synthetic(int(options.size))
    return {variant: partial(compare, folder, source, variant, options.rounds) for variant in VARIANTS}


def compare(folder: Path, source: iobench.Synthetic, variant: str, rounds: int) -> Iterator[Row]:
    """Write in turns; yield the medians."""
    size, reads_s = source.schema.logical_bytes, list[float]()

    def write(number: int) -> float:
        _, (row,) = iobench.prepare(source, [variant], data_dir=folder, name="d", overwrite=True)
        shutil.rmtree(folder / "d")
        reads_s.append(row.artifact.verify_s)
        return size / row.artifact.write_s

    rates = harness.medians({"prepare": write, "dd conv=fsync": partial(dd, folder / "dd.tmp", size)}, rounds)
    read_s = statistics.median(reads_s)
    yield {**harness.against(rates, "prepare", "dd conv=fsync", 0.8, MIB), "s of read-back": read_s}


def dd(target: Path, count: int, number: int) -> float:
    """Return the bytes per second of dd writing and syncing `count` bytes of zeros."""
    command = ["dd", "if=/dev/zero", f"of={target}", "bs=8M", f"count={count}", "iflag=count_bytes"]
    _, elapsed_s = harness.timed(lambda: subprocess.run([*command, "conv=fsync", "status=none"], check=True))
    target.unlink()
    return count / elapsed_s
