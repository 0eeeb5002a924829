"""Which figures there are about a context, and about several: what each shows, its rows, its chart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from iobench.base.units import MIB
from iobench.report import across, charts, machine, plots, rows
from iobench.report.conversion import break_even
from iobench.report.figure import Figure, heading
from iobench.report.rows import Row
from iobench.results.metrics import NAMED
from iobench.results.scaling import Curve
from iobench.results.summary import CaseSummary, Context
from iobench.results.trend import Trend
from iobench.results.under_loader import times_text

_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_]+")  # names of options come from records, those of files do not
MOST_LINES = 8  # that colours tell apart
MOST_TARGETS = 6  # of conversions that have room beside each other


def of_context(context: Context, number: int, whole: bool) -> list[Figure]:
    """Every figure that the context's records allow, or the speeds alone."""
    return list(_all(context, number)) if whole else [_speeds(context, number)]


def spanning(found: Sequence[CaseSummary], curves: Sequence[Curve] = ()) -> Iterator[Figure]:
    """Speed over every number that cases differ in, all else being equal.

    `curves` are over ranks: up to where more of them help is told.
    """
    for axis in across.axes(found):
        if lines := across.series(found, axis):
            what, keys = heading(axis.name), dict.fromkeys(row["key"] for row in lines)
            shown = [row for row in lines if row["key"] in list(keys)[:MOST_LINES]]
            says = f"Cases that were measured at several values of it, all else being equal. {_speed()}"
            if len(keys) > MOST_LINES:
                says += f" The chart shows the {MOST_LINES} that get fastest, the table all {len(keys)}."
            if axis.name == "world_size":
                says += "".join(f" {curve.sentence}" for curve in curves if len(curve.points) > 1)
            name = f"by-{_NOT_A_NAME.sub('-', axis.name)}"
            yield Figure(name, f"Speed by {what}", says, lines, plots.against(shown, axis.name))


def over_runs(trends: Sequence[Trend]) -> Iterator[Figure]:
    """How fast cases were from run to run, and what is said about steps in that."""
    if not trends:
        return
    steps = [trend.sentence for trend in trends if trend.step is not None]
    told = "; ".join(steps) if steps else "No step that chance does not explain"
    says = f"Medians with 95 % intervals, a point for each run. {told}. {_speed()}"
    found, shown = rows.over_runs(trends), rows.over_runs(trends[:MOST_LINES])
    yield Figure("over-runs", "From run to run", says, found, plots.over_runs(shown))


def _all(context: Context, number: int) -> Iterator[Figure]:
    yield _speeds(context, number)
    if spent := rows.stages(context):
        says = (
            "Time of the thread that consumes batches. Wait: for threads or workers that read ahead. "
            "Libraries that decode within their own read (HDF5) count as read. Opening, which is once a "
            "training, is not in it."
        )
        yield Figure(
            f"{number}-stages",
            "Where an epoch's time went",
            _folded(context, says),
            spent,
            charts.stages(rows.looked_at(context, spent)),
        )
    if paid := break_even(context):
        yield _pays(paid, number)
    drawn_sizes = list(_sizes(context, number))
    few = all(figure.small for figure in drawn_sizes)
    if not few:  # it has a line to itself, which would leave a hole among small ones
        yield from drawn_sizes
    waits = rows.waits(context)
    says = _meanings("open_s", "first_batch_s", "wait_p50_s", "wait_p99_s")
    chart = charts.waits(rows.looked_at(context, waits, small=True))
    yield Figure(f"{number}-waits", "Waiting", _folded(context, says, small=True), waits, chart, small=True)
    yield from _costs(context, number)
    if ranked := rows.ranks(context):
        yield _ranks(context, ranked, number)
    if few:
        yield from drawn_sizes
    course = rows.rounds(context)
    says = "Each round as a part of its case's median: a drift or a bad first round shows here."
    yield Figure(
        f"{number}-rounds", "The rounds in their order", says, course, plots.course(course), small=True
    )
    yield from _system(context, number)


def _speeds(context: Context, number: int) -> Figure:
    found, rounds = rows.cases(context), rows.rounds(context)
    notes = {case.key: times_text(case.relative) for case in context.cases}
    says = f"Medians. {_speed()} Beside each name: how many times as long as the fastest, 95 % interval."
    chart = charts.speeds(rows.looked_at(context, found), rows.looked_at(context, rounds), notes)
    return Figure(f"{number}-speed", "How fast each case is", _folded(context, says), found, chart)


def _folded(context: Context, says: str, small: bool = False) -> str:
    """What a chart says, and that it shows some of many cases, where it does."""
    if len(context.shown) == len(context.cases):
        return says
    each = "each format" if small else "each format and each loader"
    return f"{says} Of {len(context.cases)} cases the chart shows the fastest of {each}, the table all."


def _sizes(context: Context, number: int) -> Iterator[Figure]:
    if len(sizes := rows.sizes(context)) > 1:
        says = "Each format by its fastest case. The line joins those that no other beats in both."
        few = len(sizes) <= MOST_TARGETS
        yield Figure(f"{number}-size", "Stored size and speed", says, sizes, plots.sizes(sizes), small=few)


def _pays(paid: list[Row], number: int) -> Figure:
    says = (
        "Epochs of a training after which writing another format has paid for its own time, with the 95 % "
        "interval; each format under its fastest loader. Writing and opening count once. Cannot tell: as "
        "far as these rounds show, an epoch may save nothing."
    )
    written = {row["to"] for row in paid}
    fastest = [name for name in dict.fromkeys(row["from"] for row in paid) if name in written]
    few = len(fastest) <= MOST_TARGETS
    if not few:
        says += f" The chart shows the {MOST_TARGETS} fastest formats to write, the table all."
    shown = [row for row in paid if row["to"] in fastest[:MOST_TARGETS]]
    return Figure(
        f"{number}-break-even", "When a conversion pays", says, paid, plots.break_even(shown), small=few
    )


_COSTS: list[tuple[str, str, float, str]] = [
    ("cpu_s_per_gib", "Processor time", 1, "s/GiB"),
    ("memory_bytes", "Memory", MIB, "MiB"),
    ("device_allocated_bytes", "Device memory", MIB, "MiB"),
    ("disk_bytes", "Read from disk", MIB, "MiB"),
]


def _costs(context: Context, number: int) -> Iterator[Figure]:
    for name, title, unit, axis in _COSTS:
        found = rows.of(context, name)
        if any(row[name] for row in found):
            chart = charts.bars(rows.looked_at(context, found, small=True), NAMED[name], unit, axis)
            short, says = name.partition("_")[0], _folded(context, _meanings(name), small=True)
            yield Figure(f"{number}-{short}", title, says, found, chart, small=True)


def _ranks(context: Context, ranked: list[Row], number: int) -> Figure:
    name = "rank_wait_share"
    chart = charts.bars(rows.looked_at(context, ranked, small=True), NAMED[name], 0.01, "%")
    says = _meanings(name, "rank_skew") + " The slowest is named where its interval lies beyond all others."
    title = "Waiting for the slowest rank"
    return Figure(f"{number}-ranks", title, _folded(context, says, small=True), ranked, chart, small=True)


_PLOTS: list[tuple[str, str, list[str], str, bool]] = [
    ("processors", "Processors over time", ["processors", "busiest core", "waiting for disk"], "busy", True),
    ("gpu", "GPU over time", ["GPU"], "busy", True),
    ("gpu-memory", "GPU memory over time", ["gpu_memory_bytes"], "MiB", False),
    ("disk-speed", "Disk over time", ["disk_bytes_per_s"], "MiB/s", False),
    ("queue", "Disk queue over time", ["disk queue"], "requests under way", False),
]


def _system(context: Context, number: int) -> Iterator[Figure]:
    seen = machine.system(context.records)
    for name, title, columns, axis, share in _PLOTS:
        if any(row[column] is not None for row in seen for column in columns):
            chart: Any = plots.over_time(seen, columns, axis, share)
            says = "One snapshot a second, whatever the run was doing then."
            yield Figure(f"{number}-{name}", title, says, seen, chart, small=True)


def _speed() -> str:
    metric = NAMED["bytes_per_s"]
    return f"{metric.title}: {metric.meaning}."


def _meanings(*names: str) -> str:
    told = "; ".join(f"{NAMED[name].title}: {NAMED[name].meaning}" for name in names)
    return f"{told[0].upper()}{told[1:]}."
