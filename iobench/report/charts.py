"""The six kinds of chart: speeds, rounds, time by stage, size against speed, over runs, over a number."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import altair as alt

from iobench.base.text import enumerated, shortened
from iobench.base.units import MIB, bytes_unit
from iobench.report import style
from iobench.results.charts import heading
from iobench.results.display import Chart, Row
from iobench.results.metrics import BY_NAME

ROW = 20  # pixels of a case
MAX_LABEL = 34  # characters of a case's name beside a chart
WIDER = 1.1  # axis over the largest value, so that the frontier continues
LEFT_NAMES_FROM = 0.6  # of the width: from there on names are to the left of their points
NAME_SIDES: tuple[tuple[bool, Literal["left", "right"], int], ...] = ((False, "left", 7), (True, "right", -7))
NAME_HEIGHT, NAME_WIDTH = 0.05, 0.2  # of a chart, within which names would overlap
SPEED = BY_NAME["bytes_per_s"].title


def drawn(chart: Chart) -> Any:
    """Return a chart as Vega-Lite draws it."""
    kinds: dict[str, Callable[[list[Row]], Any]] = {
        "speeds": speeds,
        "stages": stages,
        "sizes": sizes,
        "rounds": rounds,
        "over_runs": over_runs,
        "against": partial(against, what=chart.axis),
    }
    return kinds[chart.kind](chart.drawn)


def speeds(rows: list[Row]) -> Any:
    """Return the relative time of each case on a logarithmic axis, with its interval and its value."""
    shown = [
        {
            **row,
            "time": row["relative time"],
            "low": row["relative time low"] or row["relative time"],
            "high": row["relative time high"] or row["relative time"],
            "text": f"{row['relative time']:{'.2f' if row['relative time'] < 10 else '.0f'}}",
        }
        for row in rows
    ]
    scale, axis = style.logarithmic([row[end] for row in shown for end in ("low", "high")], room=1.5)
    time = alt.X("time:Q", title="relative time (logarithmic)", scale=scale, axis=axis)
    base = alt.Chart(style.data(shown)).encode(
        y=_names(shown),
        color=style.colour(rows, "standing", style.STANDINGS),
        tooltip=style.tips("case", "time", "low", "high"),
    )
    ends = base.mark_rule(strokeWidth=3, opacity=0.45).encode(x=alt.X("low:Q", title=""), x2="high:Q")
    points = base.mark_circle(size=90, opacity=1).encode(x=time)
    texts = base.mark_text(align="left", dx=8, fontSize=11).encode(
        x="high:Q", text="text:N", color=alt.value("currentColor")
    )
    return _wide(alt.layer(ends, points, texts), ROW * len(shown))


def stages(rows: list[Row]) -> Any:
    """Return a bar for each case, stacked by the stages of its epochs."""
    chart = (
        alt.Chart(style.data(rows))
        .mark_bar(size=12)
        .encode(
            y=_names(rows),
            x=alt.X(
                "share:Q",
                title="share of the epochs",
                axis=alt.Axis(format="%", tickCount=5),
                scale=alt.Scale(domain=[0, 1]),
            ),
            order=alt.Order("place:Q"),
            color=style.colour(rows, "stage", style.STAGE_COLOURS),
            tooltip=style.tips("case", "stage", "seconds", "share"),
        )
    )
    return _wide(chart, ROW * len({row["key"] for row in rows}))


def rounds(rows: list[Row]) -> Any:
    """Return every round over its case's median, in order."""
    last = max(row["round"] for row in rows)
    labeled = list(range(1, last + 1, max(1, round(last / 10))))  # at most about ten of them
    chart = (
        alt.Chart(style.data(rows))
        .mark_point(filled=True, size=45, opacity=0.7, color=style.STRONG)
        .encode(
            x=alt.X(
                "round:Q", axis=alt.Axis(values=labeled, format="d"), scale=alt.Scale(zero=False, padding=20)
            ),
            y=alt.Y("of the median:Q", axis=alt.Axis(format="%"), scale=alt.Scale(zero=False)),
            tooltip=style.tips("case", "round", "of the median", "when"),
        )
    )
    return _wide(chart, 220)


def sizes(rows: list[Row]) -> Any:
    """Return stored size against the speed of each format's fastest case, with the Pareto frontier."""
    unit, unit_bytes = bytes_unit(max(row["stored_bytes"] for row in rows))
    shown = [{**row, "size": row["stored_bytes"] / unit_bytes, **_mib(row)} for row in rows]
    best = sorted((row for row in shown if row["frontier"] == "yes"), key=lambda row: row["size"])
    widest = max(row["size"] for row in shown)
    size = alt.X(
        "size:Q",
        title=f"{unit} on disk",
        axis=alt.Axis(tickCount=5),
        scale=alt.Scale(domain=[0, widest * WIDER]),
    )
    speed = _vertical(shown)
    line = (
        alt.Chart(style.data([*best, {**best[-1], "size": widest * WIDER}]))
        .mark_line(interpolate="step-after", strokeDash=[4, 3], strokeWidth=1.5, color=style.MARK)
        .encode(x=size, y=speed)
    )
    named = _without_overlaps(shown)
    base = alt.Chart(style.data(named)).encode(x=size, y=speed)
    points = base.mark_circle(size=110, opacity=1).encode(
        color=alt.Color(
            "frontier:N", scale=alt.Scale(domain=["yes", "no"], range=[style.STRONG, style.WEAK]), legend=None
        ),
        tooltip=style.tips("format", "size", "MiB/s", "case"),
    )
    names = (
        base.properties(data=style.data(near))
        .mark_text(align=align, dx=away, dy=-9, fontSize=12, color="currentColor")
        .encode(text=alt.Text("name:N"))
        for right, align, away in NAME_SIDES
        if (near := [row for row in named if (row["size"] > LEFT_NAMES_FROM * widest) == right])
    )
    return _wide(alt.layer(line, points, *names), max(260, 22 * len(shown)))


def over_runs(rows: list[Row]) -> Any:
    """Return lines of speed over time, a point with its interval for each run."""
    shown = [{**row, **_mib(row)} for row in rows]
    base = alt.Chart(style.data(shown)).encode(
        x=alt.X("when:T", title="end of the run (UTC)", axis=alt.Axis(tickCount=5)),
        color=style.colour(rows, "case"),
        detail=alt.Detail("key:N"),
    )
    return _with_intervals(base, shown, style.tips("case", "run", "MiB/s", "background load"))


def against(rows: list[Row], what: str) -> Any:
    """Return lines of speed over a number, with intervals."""
    unit = MIB if what.endswith("_bytes") else 1
    shown = [{**row, "x": row[what] / unit, **_mib(row)} for row in rows]
    values = sorted({row["x"] for row in shown})
    base = alt.Chart(style.data(shown)).encode(
        x=alt.X(
            "x:Q",
            title=heading(what) + (", MiB" if unit == MIB else ""),
            scale=alt.Scale(type="log", base=2) if values[0] > 0 else alt.Scale(),
            axis=alt.Axis(values=values, format=",~r"),
        ),
        color=style.colour(rows, "series"),
        detail=alt.Detail("key:N"),
    )
    return _with_intervals(base, shown, style.tips("series", "x", "MiB/s"))


def _with_intervals(base: Any, shown: list[Row], tips: list[Any]) -> Any:
    chart = base.mark_line(point=alt.OverlayMarkDef(size=45), strokeWidth=2).encode(
        y=_vertical(shown), tooltip=tips
    )
    if known := [row for row in shown if row["low"] is not None]:  # a browser warns about no data
        ends = base.properties(data=style.data(known)).mark_rule(strokeWidth=2, opacity=0.5)
        chart += ends.encode(y=alt.Y("low:Q"), y2=alt.Y2(field="high"))
    return _wide(chart, 280)


def _without_overlaps(shown: list[Row]) -> list[Row]:
    """Return the rows with names that do not overlap: the first of close points names them all."""
    values = [row["MiB/s"] for row in shown]
    ratio = style.far_apart(values)
    place: Callable[[float], float] = math.log if ratio else float
    height = place(max(values)) - (place(min(values)) if ratio else 0.0) or 1.0
    widest = max(row["size"] for row in shown)
    groups: list[list[Row]] = []
    for row in sorted(shown, key=lambda one: one["frontier"], reverse=True):  # these name the others
        near = (
            group
            for group in groups
            if abs(place(group[0]["MiB/s"]) - place(row["MiB/s"])) < NAME_HEIGHT * height
            and abs(group[0]["size"] - row["size"]) < NAME_WIDTH * widest
        )
        if (group := next(near, None)) is None:
            groups.append([row])
        else:
            group.append(row)
    return [
        {**row, "name": enumerated([str(one["format"]) for one in group]) if row is group[0] else ""}
        for group in groups
        for row in group
    ]


def _names(rows: Sequence[Row]) -> Any:
    """Return a vertical axis of cases, identified by key and named beside the chart, in their order."""
    names = {row["key"]: shortened(row["case"], MAX_LABEL) for row in rows}
    labels = alt.Axis(
        labelExpr=f"({json.dumps(names)})[datum.value]", labelLimit=0, ticks=False, domain=False
    )
    return alt.Y("key:N", sort=list(names), title=None, axis=labels)


def _mib(row: Row) -> Row:
    ends = {end: row.get(f"bytes_per_s {end}") for end in ("low", "high")}
    return {
        "MiB/s": row["bytes_per_s"] / MIB,
        **{end: None if value is None else value / MIB for end, value in ends.items()},
    }


def _vertical(rows: Sequence[Row]) -> Any:
    """Return a vertical axis of MiB/s, logarithmic where values lie too far apart."""
    values = [row["MiB/s"] for row in rows]
    if not style.far_apart(values):
        return alt.Y("MiB/s:Q", title=SPEED, axis=alt.Axis(format=",~f", tickCount=5))
    scale, axis = style.logarithmic(values)
    return alt.Y("MiB/s:Q", title=f"{SPEED} (logarithmic)", scale=scale, axis=axis)


def _wide(chart: Any, height: int) -> Any:
    return chart.properties(width="container", height=height)
