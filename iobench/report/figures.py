"""Figures of one context and of several: caption, rows and chart of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from iobench.base.units import MIB
from iobench.report import across, break_even, charts, machine_facts, plots, rows
from iobench.report.figure import Figure, heading
from iobench.report.rows import Row
from iobench.results.metrics import BY_NAME
from iobench.results.per_loader import times_text
from iobench.results.scaling_curve import Curve
from iobench.results.summary import CaseSummary, Context
from iobench.results.trend import Trend

_UNSAFE = re.compile(r"[^A-Za-z0-9_]+")  # names of options come from records, and become file names
MAX_LINES = 8  # with distinguishable colors
MAX_TARGETS = 6  # of conversions that fit in a small chart


def of_context(context: Context, number: int, whole: bool) -> list[Figure]:
    """Return every figure that the context's records allow, or only the speeds."""
    return list(_all(context, number)) if whole else [_speeds(context, number)]


def spanning(summaries: Sequence[CaseSummary], curves: Sequence[Curve] = ()) -> Iterator[Figure]:
    """Yield the speed over every number in which cases differ with all else equal.

    `curves` are those over ranks, whose sentences join the caption.
    """
    for axis in across.axes(summaries):
        if lines := across.series(summaries, axis):
            what, keys = heading(axis.name), dict.fromkeys(row["key"] for row in lines)
            shown = [row for row in lines if row["key"] in list(keys)[:MAX_LINES]]
            caption = f"Cases measured at several values, with all else equal. {_speed()}"
            if len(keys) > MAX_LINES:
                caption += f" The chart shows the {MAX_LINES} fastest, the table all {len(keys)}."
            if axis.name == "world_size":
                caption += "".join(f" {curve.sentence}" for curve in curves if len(curve.points) > 1)
            name = f"by-{_UNSAFE.sub('-', axis.name)}"
            yield Figure(name, f"Speed by {what}", caption, lines, plots.against(shown, axis.name))


def over_runs(trends: Sequence[Trend]) -> Iterator[Figure]:
    """Yield the speed of cases from run to run, with the steps in it."""
    if not trends:
        return
    steps = [trend.sentence for trend in trends if trend.step is not None]
    text = "; ".join(steps) if steps else "No significant step"
    caption = f"Medians with 95 % intervals, a point for each run. {text}. {_speed()}"
    table, shown = rows.over_runs(trends), rows.over_runs(trends[:MAX_LINES])
    yield Figure("over-runs", "Speed over runs", caption, table, plots.over_runs(shown))


def _all(context: Context, number: int) -> Iterator[Figure]:
    yield _speeds(context, number)
    if times := rows.stages(context):
        caption = (
            "Time of the thread that consumes batches, without opening. Wait: for read-ahead threads or "
            "workers. Libraries that decode while reading (HDF5) count as read."
        )
        yield Figure(
            f"{number}-stages",
            "Stages of an epoch",
            _folded(context, caption),
            times,
            charts.stages(rows.shown_rows(context, times)),
        )
    if paid := break_even.rows_of(context):
        yield _break_even(paid, number)
    size_figures = list(_sizes(context, number))
    few = all(figure.small for figure in size_figures)
    if not few:  # a wide figure among small ones would leave a gap
        yield from size_figures
    waits = rows.waits(context)
    caption = _folded(context, _meanings("open_s", "first_batch_s", "wait_p50_s", "wait_p99_s"), small=True)
    chart = charts.waits(rows.shown_rows(context, waits, small=True))
    yield Figure(f"{number}-waits", "Waits", caption, waits, chart, small=True)
    yield from _costs(context, number)
    if ranked := rows.ranks(context):
        yield _ranks(context, ranked, number)
    if few:
        yield from size_figures
    rounds = rows.rounds(context)
    if len({row["round"] for row in rounds}) > 1:
        caption = "Each round over its case's median. It shows drift and slow first rounds."
        yield Figure(f"{number}-rounds", "Rounds in order", caption, rounds, plots.rounds(rounds), small=True)
    yield from _system(context, number)


def _speeds(context: Context, number: int) -> Figure:
    table, rounds = rows.cases(context), rows.rounds(context)
    notes = {case.key: times_text(case.relative) for case in context.cases}
    caption = f"Medians. {_speed()} Next to each name: relative time to the fastest, with its 95 % interval."
    chart = charts.speeds(rows.shown_rows(context, table), rows.shown_rows(context, rounds), notes)
    return Figure(f"{number}-speed", "Speed of each case", _folded(context, caption), table, chart)


def _folded(context: Context, caption: str, small: bool = False) -> str:
    """Return the caption, with a note where the chart shows only some of the cases."""
    if len(context.shown) == len(context.cases):
        return caption
    each = "each format" if small else "each format and each loader"
    return f"{caption} Of {len(context.cases)} cases the chart shows the fastest of {each}, the table all."


def _sizes(context: Context, number: int) -> Iterator[Figure]:
    if len(sizes := rows.sizes(context)) > 1:
        caption = "Each format by its fastest case. The line joins the Pareto-optimal formats."
        few = len(sizes) <= MAX_TARGETS
        yield Figure(f"{number}-size", "Stored size and speed", caption, sizes, plots.sizes(sizes), small=few)


def _break_even(paid: list[Row], number: int) -> Figure:
    caption = (
        "Epochs after which converting the data to another format has paid off, with the 95 % interval; each "
        "format under its fastest loader. Writing and opening count once. Unclear: the interval of the time "
        "saved per epoch includes zero."
    )
    written = {row["to"] for row in paid}
    names = dict.fromkeys([*(row["from"] for row in paid), *(row["to"] for row in paid)])  # fastest first
    fastest = [name for name in names if name in written]
    few = len(fastest) <= MAX_TARGETS
    if not few:
        caption += f" The chart shows the {MAX_TARGETS} fastest formats, the table all."
    shown = [row for row in paid if row["to"] in fastest[:MAX_TARGETS]]
    return Figure(
        f"{number}-break-even",
        "Break-even of a conversion",
        caption,
        paid,
        plots.break_even(shown),
        small=few,
    )


_COSTS: list[tuple[str, str, float, str]] = [
    ("cpu_s_per_gib", "CPU time", 1, "s/GiB"),
    ("memory_bytes", "Memory", MIB, "MiB"),
    ("device_allocated_bytes", "Device memory", MIB, "MiB"),
    ("disk_bytes", "Read from disk", MIB, "MiB"),
]


def _costs(context: Context, number: int) -> Iterator[Figure]:
    for name, title, unit, axis in _COSTS:
        table = rows.of(context, name)
        if any(row[name] for row in table):
            chart = charts.bars(rows.shown_rows(context, table, small=True), BY_NAME[name], unit, axis)
            short, caption = name.partition("_")[0], _folded(context, _meanings(name), small=True)
            yield Figure(f"{number}-{short}", title, caption, table, chart, small=True)


def _ranks(context: Context, ranked: list[Row], number: int) -> Figure:
    name = "straggler_wait_share"
    chart = charts.bars(rows.shown_rows(context, ranked, small=True), BY_NAME[name], 0.01, "%")
    caption = _meanings(name, "rank_imbalance") + " The slowest rank is named where it is significant."
    title = "Wait for the slowest rank"
    return Figure(f"{number}-ranks", title, _folded(context, caption, small=True), ranked, chart, small=True)


_PLOTS: list[tuple[str, str, list[str], str, bool]] = [
    ("processors", "CPU over time", ["CPU", "busiest core", "I/O wait"], "busy", True),
    ("gpu", "GPU over time", ["GPU"], "busy", True),
    ("gpu-memory", "GPU memory over time", ["gpu_memory_bytes"], "MiB", False),
    ("disk-speed", "Disk over time", ["disk_bytes_per_s"], "MiB/s", False),
    ("queue", "Disk queue over time", ["disk queue"], "requests in flight", False),
]


def _system(context: Context, number: int) -> Iterator[Figure]:
    snapshots = machine_facts.system(context)
    for name, title, columns, axis, share in _PLOTS:
        if any(row[column] is not None for row in snapshots for column in columns):
            chart: Any = plots.over_time(snapshots, columns, axis, share)
            caption = "One snapshot per second, during and between rounds."
            yield Figure(f"{number}-{name}", title, caption, snapshots, chart, small=True)


def _speed() -> str:
    metric = BY_NAME["bytes_per_s"]
    return f"{metric.title}: {metric.meaning}."


def _meanings(*names: str) -> str:
    text = "; ".join(f"{BY_NAME[name].title}: {BY_NAME[name].meaning}" for name in names)
    return f"{text[0].upper()}{text[1:]}."
