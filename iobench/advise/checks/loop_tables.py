"""Tables of loops over a loader and of its profiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from iobench.advise.checks.loop_stats import LoopStats
from iobench.base.units import bytes_text, counted, rate_text, seconds_text
from iobench.results.columns import Columns
from iobench.results.metrics import mib_text

if TYPE_CHECKING:  # it loads torch
    from iobench.advise.checks.profiling import Profile

MEASURABLE_S = 0.05  # shorter loops have no usable processor time: the system counts it in 10 ms


def loop_table(stats: LoopStats, alone: bool = False) -> Columns:
    """Return the names and figures of a loop; `alone` where nothing was done with the batches."""
    names, figures = zip(*_rows(stats, alone), strict=True)
    return [("", list(names)), ("", list(figures))]


def loops_table(loops: Sequence[LoopStats]) -> Columns:
    """Return the main figures of several loops."""
    unit = "samples/s" if any(loop.samples for loop in loops) else "batches/s"
    return [
        ("loop", [f"{number}" for number in range(1, len(loops) + 1)]),
        ("batches", [f"{loop.batches:,}" for loop in loops]),
        (unit, [rate_text(loop.rate) for loop in loops]),
        ("MiB/s", [mib_text(loop.bytes_per_s) for loop in loops]),
        ("first batch", [seconds_text(loop.first_wait_s) for loop in loops]),
        ("waiting", [f"{loop.wait_share:.0%}" for loop in loops]),
        ("wait p99", [seconds_text(loop.wait_p99_s) for loop in loops]),
    ]


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


def profile_table(profile: Profile) -> Columns:
    """Return the functions that took most of a process's time."""
    functions = profile.functions
    return [
        (f"{profile.where}, {seconds_text(profile.total_s)}", [one.name for one in functions]),
        ("own time", [f"{one.share:.0%}" for one in functions]),
        ("calls", [f"{one.calls:,}" for one in functions]),
    ]
