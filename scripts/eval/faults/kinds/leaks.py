"""Resource leaks: no thread, descriptor, memory map or process remains after epochs that end early."""

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
from eval.faults.children import run_or_raise, tried
from eval.faults.registry import Outcome, Trials, kind
from eval.faults.scenarios import NAME, PrepareCall
from eval.faults.targets import installed_formats
from iobench import Manifest
from iobench.loading import loaders
from iobench.loading.loaders import Job
from iobench.loading.order import Order

TIMES, ELEMENTS = 30, 1 << 15
TIMEOUT_S = 5.0


@kind("leaks")
def leaks(trials: Trials) -> Iterator[Outcome]:
    """End epochs of every loader over every format after one or two batches."""
    loaders_to_test: list[tuple[str, Callable[[Manifest, str], None]]] = [
        ("StreamLoader", _abandon_stream_loader),
        *((word, functools.partial(_abandon_loader, word)) for word in WORDS),
    ]
    every = [(name, what, abandon) for name in installed_formats() for what, abandon in loaders_to_test]
    for name, what, abandon in trials.sample(every, quick=4):
        data_dir = trials.folder / name
        if not data_dir.exists():
            run_or_raise(functools.partial(PrepareCall(0, (name,)), data_dir, ELEMENTS))
        times = 3 if "num_workers" in what else TIMES
        fault = f"{what} over {name}, abandoned {times} times"
        yield tried(fault, _abandon_repeatedly, abandon, data_dir, name, times)


WORDS = ("native", "dataloader", "dataloader:num_workers=2", "stream")


def _abandon_stream_loader(manifest: Manifest, name: str) -> None:
    for number, _ in enumerate(iobench.StreamLoader(manifest.root, format=name, batch_size=64)):
        if number == 1:
            break


def _abandon_loader(word: str, manifest: Manifest, name: str) -> None:
    order = Order("random", batch_size=64)
    loader = loaders.parse(word)
    request = order.batches(manifest.schema.samples, 0)
    with (
        closing(loader.open(Job(manifest.opener(name), order, "cpu"))) as epochs,
        closing(epochs.epoch(request)) as batches,
    ):
        next(iter(batches))


def _abandon_repeatedly(
    abandon: Callable[[Manifest, str], None], data_dir: Path, name: str, times: int
) -> None:
    manifest = iobench.find_dataset(data_dir, NAME)
    abandon(manifest, name)  # what is created once and cached is no leak
    abandon(manifest, name)
    before = _resources(manifest.root)
    for _ in range(times):
        abandon(manifest, name)
    until, more = time.monotonic() + TIMEOUT_S, {"": (0, 0)}
    while more and time.monotonic() < until:  # threads of the workers' queues end later
        after = _resources(manifest.root)
        more = {what: (before[what], after[what]) for what in before if after[what] > before[what]}
        time.sleep(0.02)
    assert not more, f"leaked (before, after): {more}"


def _resources(root: Path) -> dict[str, int]:
    gc.collect()
    maps = Path("/proc/self/maps").read_text()
    return {
        "threads": _threads(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "memory maps of the data": maps.count(str(root.resolve())),
        "processes": len(psutil.Process().children(recursive=True)),
    }


def _threads() -> int:
    """Count threads, without those that asyncio's pool may have: zarr keeps such a pool."""
    threads = threading.enumerate()
    pooled = sum(thread.name.startswith("asyncio_") for thread in threads)
    return len(threads) - pooled + max(0, pooled - min(32, (os.cpu_count() or 1) + 4))
