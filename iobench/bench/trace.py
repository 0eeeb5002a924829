"""Chrome trace of a case."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from iobench.base.errors import RecordError
from iobench.base.text import reason
from iobench.bench.opening import epoch_request, opened
from iobench.loading.host_to_device import DeviceBatch, HostToDevice
from iobench.loading.loaders import Job, Loader

T = TypeVar("T")
BATCHES = 64  # viewers cannot open traces of many thousand batches


def write_trace(
    path: Path, loader: Loader, job: Job, transfer: HostToDevice, consume: Callable[[DeviceBatch], None]
) -> None:
    """Write a Chrome trace (chrome://tracing, ui.perfetto.dev) of a case's first 64 batches.

    Raises RecordError if the file cannot be written.
    """
    request = epoch_request(loader, job, 1)
    request = request if isinstance(request, int) else request[:BATCHES]
    with profile(activities=activities_on(transfer.device)) as profiler:
        with record_function("open"):
            epochs = opened(loader, job)
        with closing(epochs), closing(epochs.epoch(request)) as batches:
            for batch in _named("next", itertools.islice(batches, BATCHES)):
                with record_function("move"):
                    moved = transfer.move(batch)
                with record_function("consume"):
                    consume(moved)
        transfer.synchronize()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(path))
    except (OSError, RuntimeError) as error:
        raise RecordError(
            f"the trace cannot be written: {reason(error)}",
            kind="not-writable",
            path=path,
            hint="name another file with --out",
        ) from error


def activities_on(device: torch.device) -> list[ProfilerActivity]:
    """Return the host's activity, and the device's if this torch can record it."""
    there = getattr(ProfilerActivity, device.type.upper(), ProfilerActivity.CPU)
    return [one for one in ProfilerActivity.__members__.values() if one in (ProfilerActivity.CPU, there)]


def _named(name: str, items: Iterator[T]) -> Iterator[T]:
    """Yield the same items, with a span in the trace for the wait for each."""
    while True:
        with record_function(name):
            try:
                item = next(items)
            except StopIteration:
                return
        yield item
