"""Epochs that are left early, again and again: no thread, descriptor, map or process is left."""

from __future__ import annotations

import functools
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil

import iobench
from _faults.attacked import done, names
from _faults.children import complaint, forked
from _faults.prepares import NAME, Call
from _faults.registry import Outcome, Trials, kind
from iobench import Manifest
from iobench.loading import loaders
from iobench.loading.loaders import Job
from iobench.loading.order import Order

TIMES, ELEMENTS = 30, 1 << 15
PATIENCE_S = 5.0


@kind("leaks")
def leaks(trials: Trials) -> Iterator[Outcome]:
    """Every loader over every format, left after a batch or two."""
    ways: list[tuple[str, Callable[[Manifest, str], None]]] = [
        ("StreamLoader", _leave_stream_loader),
        *((word, functools.partial(_leave_loader, word)) for word in WORDS),
    ]
    every = [(name, what, leave) for name in names() for what, leave in ways]
    for name, what, leave in trials.sample(every, quick=4):
        data_dir = trials.folder / name
        if not data_dir.exists():
            done(functools.partial(Call(0, (name,)), data_dir, ELEMENTS))
        times = 3 if "num_workers" in what else TIMES
        ended = forked(functools.partial(_leave_often, leave, data_dir, name, times))
        yield f"{what} over {name}, left {times} times", complaint(ended)


WORDS = ("native", "dataloader", "dataloader:num_workers=2", "stream")


def _leave_stream_loader(manifest: Manifest, name: str) -> None:
    for number, _ in enumerate(iobench.StreamLoader(manifest.root, format=name, batch_size=64)):
        if number == 1:
            break


def _leave_loader(word: str, manifest: Manifest, name: str) -> None:
    order = Order("random", batch_size=64)
    loader = loaders.parse(word)
    asked = order.batches(manifest.schema.samples, 0)
    with (
        closing(loader.open(Job(manifest.opener(name), order, "cpu"))) as epochs,
        closing(epochs.epoch(asked)) as batches,
    ):
        next(iter(batches))


def _leave_often(leave: Callable[[Manifest, str], None], data_dir: Path, name: str, times: int) -> None:
    manifest = iobench.find_dataset(data_dir, NAME)
    leave(manifest, name)  # what is made once and kept is none
    leave(manifest, name)
    before = _held(manifest.root)
    for _ in range(times):
        leave(manifest, name)
    until, more = time.monotonic() + PATIENCE_S, {"": (0, 0)}
    while more and time.monotonic() < until:  # queues of workers have threads that end a moment later
        after = _held(manifest.root)
        more = {what: (before[what], after[what]) for what in before if after[what] > before[what]}
        time.sleep(0.02)
    assert not more, f"before and after: {more}"


def _held(root: Path) -> dict[str, int]:
    gc.collect()
    maps = Path("/proc/self/maps").read_text()
    return {
        "threads": _threads(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "maps of the data": maps.count(str(root.resolve())),
        "processes": len(psutil.Process().children(recursive=True)),
    }


def _threads() -> int:
    """Threads, those of asyncio's pool as far as they are more than such a pool has: zarr keeps one."""
    threads = threading.enumerate()
    pooled = sum(thread.name.startswith("asyncio_") for thread in threads)
    return len(threads) - pooled + max(0, pooled - min(32, (os.cpu_count() or 1) + 4))
