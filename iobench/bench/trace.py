"""What torch.profiler sees of a case's first batches, as a file for a trace viewer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TypeVar

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from iobench.bench.case import Case
from iobench.bench.epoch import Consumer, opened
from iobench.dataset.manifest import Opener
from iobench.errors import RecordError
from iobench.loading.transfer import HostToDevice

T = TypeVar("T")
BATCHES = 64  # a trace of many thousand opens slowly, if at all


def path_beside(records: Path, label: str) -> Path:
    """Where the trace of a case goes: beside the run's records, named after both."""
    return records.with_name(f"{records.stem}-{re.sub(r'[^A-Za-z0-9=]+', '-', label)}.trace.json")


def write(path: Path, case: Case, opener: Opener, transfer: HostToDevice, consume: Consumer) -> None:
    """Write a Chrome trace (chrome://tracing, ui.perfetto.dev) of a case's first 64 batches.

    RecordError where it cannot be written.
    """
    rows = case.settings.row_order(opener.schema).batches(opener.schema.samples, 1)[:BATCHES]
    with profile(activities=_activities(transfer.device)) as profiler:
        with record_function("open"):
            loader = opened(case, opener, transfer.device)
        with closing(loader), closing(loader.epoch(rows)) as batches:
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
        raise RecordError(f"a trace cannot be written to {path}: {error}; name a file with --out") from error


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
