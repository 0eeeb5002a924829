"""What torch.profiler sees of a case's first batches, as a file for a trace viewer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TypeVar

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from iobench.base.errors import (
    RecordError,
)
from iobench.base.text import reason
from iobench.bench.epoch import asked_of, opened
from iobench.loading.loaders import Job, Loader
from iobench.loading.transfer import DeviceBatch, HostToDevice

T = TypeVar("T")
BATCHES = 64  # a trace of many thousand opens slowly, if at all


def write(
    path: Path, loader: Loader, job: Job, transfer: HostToDevice, consume: Callable[[DeviceBatch], None]
) -> None:
    """Write a Chrome trace (chrome://tracing, ui.perfetto.dev) of a case's first 64 batches.

    RecordError where it cannot be written.
    """
    asked = asked_of(loader, job, 1)
    asked = asked if isinstance(asked, int) else asked[:BATCHES]
    with profile(activities=_activities(transfer.device)) as profiler:
        with record_function("open"):
            epochs = opened(loader, job)
        with closing(epochs), closing(epochs.epoch(asked)) as batches:
            for batch in _named("next", islice(batches, BATCHES)):
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
            f"a trace cannot be written to {path}: {reason(error)}; name a file with --out"
        ) from error


def _activities(device: torch.device) -> list[ProfilerActivity]:
    """The host's, and those of the device where this torch can see them."""
    there = getattr(ProfilerActivity, device.type.upper(), ProfilerActivity.CPU)
    return [one for one in ProfilerActivity.__members__.values() if one in (ProfilerActivity.CPU, there)]


def _named(name: str, items: Iterator[T]) -> Iterator[T]:
    """The same items, with a span in the trace for the wait for each."""
    while True:
        with record_function(name):
            try:
                item = next(items)
            except StopIteration:
                return
        yield item
