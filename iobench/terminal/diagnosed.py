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


def loop_table(stats: LoopStats, alone: bool = False) -> Table:
    """Return the table of a loop's figures; `alone` where nothing was done with the batches."""
    table = plain_table("", "", left=2)
    table.show_header = False
    table.columns[1].no_wrap = False
    for name, value in _rows(stats, alone):
        table.add_row(name, value)
    return table


def _rows(stats: LoopStats, alone: bool) -> Iterator[tuple[str, str]]:
    loader = stats.loader
    settings = (
        f", {counted(loader.workers, 'worker')}, batch size {loader.batch_size}"
        if loader.workers is not None
        else ""
    )
    yield "loader", f"{loader.class_name}{f' over {loader.dataset}' if loader.dataset else ''}{settings}"
    if not stats.batches:
        yield "batches", f"none in {seconds_text(stats.elapsed_s)}"
        return
    size = bytes_text(stats.bytes / stats.batches)
    yield (
        "batches",
        f"{stats.batches:,} of {size}, {stats.samples:,} samples in {seconds_text(stats.elapsed_s)}",
    )
    yield "first batch", seconds_text(stats.first_wait_s)
    if stats.batches > 1:
        yield from _steady(stats, alone)
    if stats.elapsed_s >= MEASURABLE_S:
        yield "CPU", _processors(stats)
    if stats.iowait is not None:
        yield "I/O wait", f"{stats.iowait:.0%} of all cores"
    if stats.background.processors is not None:
        yield "background CPU", f"{stats.background.processors:.0%} of all cores"
    if stats.disk_bytes is not None:
        yield "from disk", bytes_text(stats.disk_bytes)
    if stats.gpu is not None:
        yield "GPU", f"{stats.gpu:.0%} busy, below half {stats.gpu_low or 0:.0%} of the time"
    if stats.memory_bytes is not None:
        growth = stats.memory_growth_bytes or 0
        grew = f", grew by {bytes_text(growth)}" if growth > 0 else ""
        yield "memory", f"{bytes_text(stats.memory_bytes)} of all processes{grew}"


def _steady(stats: LoopStats, alone: bool) -> Iterator[tuple[str, str]]:
    """Yield the figures of the batches after the first."""
    speed = f"{rate_text(stats.rate)} {'samples' if stats.samples else 'batches'}/s"
    yield "after that", f"{speed}, {bytes_text(stats.bytes_per_s)}/s"
    if not alone:
        waited = f"{seconds_text(stats.wait_s)}, {stats.wait_share:.0%}"
        yield "waiting", f"{waited}; the step {seconds_text(stats.step_s)}"
    waits = (stats.wait_p50_s, stats.wait_p99_s, stats.wait_max_s)
    yield "wait p50, p99, max", ", ".join(map(seconds_text, waits))


def _processors(stats: LoopStats) -> str:
    used = f"{stats.cpu_s / stats.elapsed_s:.0%} of a core"
    if not stats.workers:
        return used
    return f"{used}, {counted(stats.workers, 'worker')} {stats.worker_cpu_s / stats.elapsed_s:.0%}"


def profile_table(profile: Profile) -> Table:
    """Return the functions that took most of a process's time."""
    table = plain_table(f"{profile.where}, {seconds_text(profile.total_s)}", "own time", "calls", left=1)
    for function in profile.functions:
        table.add_row(function.name, f"{function.share:.0%}", f"{function.calls:,}")
    return table
