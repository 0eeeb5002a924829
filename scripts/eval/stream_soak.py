"""Run a StreamLoader for thousands of epochs: its memory, descriptors, threads and maps must not grow.

Each trial is a process. `small` reads whole epochs of 1 MB, `large` those of a dataset of `--large`
bytes for `--minutes`; `left` leaves epochs after some batches, and `states` then resumes them from a state in
the same loader or in a new one; `interrupts` gets SIGINT at random moments; `forks` forks in the middle of an
epoch, and the child reads one of its own. The row has what the process had after a tenth of the epochs and at
the end.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import os
import random
import signal
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import iobench
from eval.harness import Row, Trials, in_process
from iobench import Manifest, StreamLoader

OPTIONS = {
    "epochs": (2000, "epochs of every trial but `large`"),
    "minutes": (30.0, "of `large`"),
    "large": (4e9, "bytes of its dataset"),
    "formats": (["npy", "lmdb", "parquet"], "formats; order random"),
}
SMALL, BATCH = 1e6, 256  # bytes of the other trials' dataset
EVERY = 10  # epochs between two looks, which take longer than a small epoch
MORE_BYTES = 8 << 20  # of memory that may be more at the end: the allocator's
WATCHED = ("memory MiB", "descriptors", "threads", "maps")
Epoch = Callable[[StreamLoader, int], StreamLoader]  # one epoch; returns the loader of the next


def trials(options: argparse.Namespace) -> Trials:
    ways = {"small": whole, "left": left, "states": resumed, "interrupts": interrupted, "forks": forked}
    small = {
        f"{way}-{name}": partial(in_process, soak, options, name, SMALL, epoch, options.epochs, None)
        for way, epoch in ways.items()
        for name in options.formats
    }
    until_s = options.minutes * 60
    large = {
        f"large-{name}": partial(in_process, soak, options, name, options.large, whole, None, until_s)
        for name in options.formats
    }
    return small | large


def soak(
    options: argparse.Namespace,
    name: str,
    size: float,
    epoch: Epoch,
    epochs: int | None,
    until_s: float | None,
) -> Row:
    """Run epochs, and compare what the process has at the end with what it had after a tenth of them."""
    source = iobench.Synthetic(int(size), (512,), dtype="uint8")
    manifest = iobench.prepare(source, [name], data_dir=options.folder, name=f"soak-{size:.0f}")[0]
    loader = opened(manifest, name)
    began, seen = time.monotonic(), list[dict[str, float]]()
    for number in itertools.count():
        share = number / epochs if epochs else (time.monotonic() - began) / (until_s or 1)
        if share >= 1:
            break
        loader = epoch(loader, number)
        if share >= 0.1 and number % EVERY == 0:
            seen.append(resources())
    ends = max(1, len(seen) // 20)
    row: Row = {"epochs": number, "seconds": time.monotonic() - began}
    for what in WATCHED:
        first, last = (statistics.median(one[what] for one in part) for part in (seen[:ends], seen[-ends:]))
        row |= {what: first, f"{what}, end": last}
        if last > first + (MORE_BYTES / 2**20 if what == WATCHED[0] else 0):
            row["failed"] = f"{what} grew from {first:.0f} to {last:.0f} in {number} epochs"
    return row


def opened(manifest: Manifest, name: str) -> StreamLoader:
    return StreamLoader(manifest.root, format=name, batch_size=BATCH, order="random")


def resources() -> dict[str, float]:
    """Return what this process has now."""
    gc.collect()
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "memory MiB": int(status["RssAnon"].split()[0]) / 1024,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(status["Threads"]),
        "maps": Path("/proc/self/maps").read_text().count("soak-"),
    }


def read(loader: StreamLoader, batches: int | None = None) -> None:
    """Read batches, by default to the end of the epoch."""
    for _ in itertools.islice(loader, batches):
        pass


def whole(loader: StreamLoader, number: int) -> StreamLoader:
    read(loader)
    return loader


def left(loader: StreamLoader, number: int) -> StreamLoader:
    """Leave an epoch after some batches."""
    read(loader, number % len(loader))
    return loader


def resumed(loader: StreamLoader, number: int) -> StreamLoader:
    """Leave an epoch, and read the rest of it by its state: in this loader or, at times, a new one."""
    read(loader, number % len(loader))
    state = loader.state_dict()
    if number % 10 == 0:
        loader.close()
        loader = opened(Manifest.load(loader._manifest.root), loader._variant)
    loader.load_state_dict(state)
    read(loader)
    return loader


def interrupted(loader: StreamLoader, number: int) -> StreamLoader:
    """Read an epoch that gets SIGINT at a random moment."""
    rng = random.Random(number)
    began = time.perf_counter()
    read(loader)
    epoch_s = time.perf_counter() - began
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, max(1e-5, epoch_s * rng.random() * 1.2))
        read(loader)
        time.sleep(epoch_s)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # within the block: it may come right before
    return loader


def forked(loader: StreamLoader, number: int) -> StreamLoader:
    """Fork in the middle of every tenth epoch; the child reads a whole one of its own."""
    for batch, _ in enumerate(loader):
        if batch == 1 and number % 10 == 0:
            child = os.fork()
            if not child:
                read(loader)
                os._exit(0)
            if os.waitpid(child, 0)[1]:
                raise ChildProcessError(f"the child of epoch {number} failed")
    return loader
