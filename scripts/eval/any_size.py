"""Measure time and memory of `iobench add` and `iobench run --max-time` over files of any size.

Each trial adds a npy file and measures it under several loaders. Files above `--dense` bytes are sparse: they
read as zeros and take no disk. Memory is the highest sum of RssAnon and RssShmem of /proc/PID/status, which
leaves out pages of mapped files: of the command's own process, and of it with its workers. It should be at
most 600 MiB and the same for each size; a run should end within 110 % of `--max-time`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from eval.harness import Row, Trials
from iobench.host.process_counters import status_of

OPTIONS = {
    "sizes": ("1GiB,4GiB,64GiB,2TiB", "sizes of the files"),
    "samples": ("512,150528", "bytes of a sample"),
    "loaders": ("native,stream,dataloader:num_workers=2", "loaders; those of a run are measured one by one"),
    "max_time": (20, "seconds of each run"),
    "dense": (4 << 30, "bytes up to which a file is filled with random numbers"),
}
UNITS = {"MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
MOST_MIB, MOST_ADD_S, LATE = 600, 120, 1.1
EVERY_S = 0.02  # between two samples of the memory
PIECE = 64 << 20


def trials(options: argparse.Namespace) -> Trials:
    """Return a trial for each size of file and sample."""
    pairs = itertools.product(options.sizes.split(","), map(int, options.samples.split(",")))
    return {f"{size}-{sample}": partial(commands, size, sample, options) for size, sample in pairs}


def commands(size: str, sample: int, options: argparse.Namespace) -> Iterator[Row]:
    """Yield time and memory of adding a file of this size, and of runs over it."""
    root = Path(options.data_dir)
    file = npy(root / f"{size}-{sample}.npy", bytes_of(size), sample, options.dense)
    data = ("--data-dir", str(root / "data"), "--name", file.stem)
    yield row("add", MOST_ADD_S, "add", str(file), "--overwrite", *data)
    limit = ("--max-time", str(options.max_time), "--device", "cpu")
    for loader in options.loaders.split(","):
        yield row(f"run {loader}", LATE * options.max_time, "run", *data, *limit, "--loader", loader)


def row(what: str, most_s: float, *arguments: str) -> Row:
    """Return the row of a command; it is good if all is within the limits."""
    seconds, own, every, code = command(*arguments)
    good = code == 0 and seconds <= most_s and own <= MOST_MIB
    return {"command": what, "seconds": seconds, "MiB": own, "with workers": every, "good": good}


def summary(measured: Sequence[Row]) -> list[str]:
    """Return the number of commands within the limits, and the range of their memory."""
    good = sum(bool(row["good"]) for row in measured)
    runs = [row["MiB"] for row in measured if row["command"] != "add"]
    return [
        f"{good} of {len(measured)} commands within the limits",
        f"memory of runs: {min(runs):.0f} to {max(runs):.0f} MiB",
    ]


def bytes_of(size: str) -> int:
    """Return the bytes of a size like 4GiB."""
    return int(size[:-3]) * UNITS[size[-3:]]


def npy(file: Path, size: int, sample: int, dense: int) -> Path:
    """Make a file of that size if it is missing: random numbers, or sparse above `dense` bytes."""
    if file.exists():
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    partial_file = file.with_suffix(".part")
    array = np.lib.format.open_memmap(partial_file, "w+", np.dtype(np.uint8), (size // sample, sample))
    offset, total = array.offset, array.nbytes
    del array
    if size <= dense:
        random = np.random.default_rng(0)
        with open(partial_file, "r+b") as opened:
            opened.seek(offset)
            for low in range(0, total, PIECE):
                opened.write(random.bytes(min(PIECE, total - low)))
    return partial_file.rename(file)


def command(*arguments: str) -> tuple[float, float, float, int]:
    """Run iobench; return seconds, MiB of its own process and of all of them, and the exit code."""
    began, own, every = time.monotonic(), 0.0, 0.0
    with subprocess.Popen([sys.executable, "-m", "iobench", *arguments], stdout=sys.stderr) as process:
        while process.poll() is None:
            with contextlib.suppress(psutil.Error):
                children = psutil.Process(process.pid).children(recursive=True)
                used = [resident(process.pid), *(resident(child.pid) for child in children)]
                own, every = max(own, used[0]), max(every, sum(used))
            time.sleep(EVERY_S)
    return time.monotonic() - began, own, every, process.returncode


def resident(pid: int) -> float:
    """Return the MiB of a process that are no pages of files."""
    with contextlib.suppress(OSError):
        return sum(int(status_of(pid, name)) for name in ("RssAnon", "RssShmem")) / 1024
    return 0.0
