"""Tables of a diagnosis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Table

from iobench.base.units import bytes_text, counted, rate_text, seconds_text
from iobench.diagnose.loop_stats import LoopStats
from iobench.terminal.tables import plain_table

if TYPE_CHECKING:  # they load torch
    from iobench.diagnose.profiling import Profile

MEASURABLE_S = 0.05  # shorter loops have no usable processor time: the system counts it in 10 ms


def loop_table(seen: LoopStats, alone: bool = False) -> Table:
    """What a loop over a loader showed, a line per figure; `alone` where nothing was done with batches."""
    table = plain_table("what", "seen", left=2)
    table.columns[1].no_wrap = False
    for name, value in _seen(seen, alone):
        table.add_row(name, value)
    return table


def _seen(seen: LoopStats, alone: bool) -> Iterator[tuple[str, str]]:
    facts = seen.facts
    settings = (
        f", {counted(facts.workers, 'worker')}, batch size {facts.batch_size}"
        if facts.workers is not None
        else ""
    )
    yield "loader", f"{facts.kind}{f' over {facts.dataset}' if facts.dataset else ''}{settings}"
    if not seen.batches:
        yield "batches", f"none in {seconds_text(seen.elapsed_s)}"
        return
    size = bytes_text(seen.bytes / seen.batches)
    yield "batches", f"{seen.batches:,} of {size}, {seen.samples:,} samples in {seconds_text(seen.elapsed_s)}"
    yield "first batch", seconds_text(seen.first_wait_s)
    if seen.batches > 1:
        yield from _steady(seen, alone)
    if seen.elapsed_s >= MEASURABLE_S:
        yield "processors", _processors(seen)
    if seen.iowait is not None:
        yield "waiting for disks", f"{seen.iowait:.0%} of all processors"
    if seen.others.processors is not None:
        yield "other processes", f"{seen.others.processors:.0%} of all processors"
    if seen.disk_bytes is not None:
        yield "from disk", bytes_text(seen.disk_bytes)
    if seen.gpu is not None:
        yield "GPU", f"{seen.gpu:.0%} busy, below half {seen.gpu_low or 0:.0%} of the time"
    if seen.memory_bytes is not None:
        growth = bytes_text(max(0, seen.memory_growth_bytes or 0))
        yield "memory", f"{bytes_text(seen.memory_bytes)} of all processes, grown by {growth}"


def _steady(seen: LoopStats, alone: bool) -> Iterator[tuple[str, str]]:
    """Yield the figures of the batches after the first."""
    speed = f"{rate_text(seen.rate)} {'samples' if seen.samples else 'batches'}/s"
    yield "after it", f"{speed}, {bytes_text(seen.bytes_per_s)}/s"
    if not alone:
        waited = f"{seconds_text(seen.wait_s)}, {seen.wait_share:.0%}"
        yield "waiting", f"{waited}; the step {seconds_text(seen.step_s)}"
    waits = (seen.wait_p50_s, seen.wait_p99_s, seen.wait_max_s)
    yield "wait p50, p99, most", ", ".join(map(seconds_text, waits))


def _processors(seen: LoopStats) -> str:
    used = f"{seen.cpu_s / seen.elapsed_s:.0%} of a core"
    if not seen.workers:
        return used
    return f"{used}, {counted(seen.workers, 'worker')} {seen.worker_cpu_s / seen.elapsed_s:.0%}"


def profile_table(profile: Profile) -> Table:
    """Return the functions that took most of a process's time."""
    table = plain_table(f"{profile.where}, {seconds_text(profile.total_s)}", "own time", "calls", left=1)
    for function in profile.functions:
        table.add_row(function.name, f"{function.share:.0%}", f"{function.calls:,}")
    return table
