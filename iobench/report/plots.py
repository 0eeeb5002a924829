"""Charts over a quantity: over time, over varied settings, from format to format."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import altair as alt

from iobench.base.text import enumerated
from iobench.base.units import MIB, bytes_unit, three_digits
from iobench.report import style
from iobench.report.figure import heading
from iobench.report.rows import Row
from iobench.results.metrics import BY_NAME

WIDER = 1.1  # axis over the largest value, so that the frontier continues
MAX_TALL_ROWS = 6  # rows of tiles; more are lower
LEFT_NAMES_FROM = 0.6  # of the width: from there on names are to the left of their points
NAME_SIDES: tuple[tuple[bool, Literal["left", "right"], int], ...] = ((False, "left", 7), (True, "right", -7))
NAME_HEIGHT, NAME_WIDTH = 0.05, 0.2  # of a chart, within which names would overlap
SPEED = BY_NAME["bytes_per_s"].title
FILLS = {"yes": f"{style.LIKE}88", "never": f"{style.WEAK}55", "unclear": "#88888811"}


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
        color=style.series("series", list(dict.fromkeys(row["series"] for row in rows)), columns=1),
        detail=alt.Detail("key:N"),
    )
    return _with_intervals(base, shown, style.tips("series", "x", "MiB/s"))


def over_runs(rows: list[Row]) -> Any:
    """Return lines of speed over time, a point with its interval for each run."""
    shown = [{**row, **_mib(row)} for row in rows]
    base = alt.Chart(style.data(shown)).encode(
        x=alt.X("when:T", title="end of the run (UTC)", axis=alt.Axis(tickCount=5)),
        color=style.series("case", list(dict.fromkeys(row["case"] for row in rows)), columns=1),
        detail=alt.Detail("key:N"),
    )
    return _with_intervals(base, shown, style.tips("case", "run", "MiB/s", "background load"))


def _with_intervals(base: Any, shown: list[Row], tips: list[Any]) -> Any:
    """Return lines of speed with the intervals that are known."""
    chart = base.mark_line(point=alt.OverlayMarkDef(size=45), strokeWidth=2).encode(
        y=_vertical(shown), tooltip=tips
    )
    for known in style.unless_empty([row for row in shown if row["low"] is not None]):
        ends = base.properties(data=style.data(known)).mark_rule(strokeWidth=2, opacity=0.5)
        chart += ends.encode(y=alt.Y("low:Q"), y2=alt.Y2(field="high"))
    return _wide(chart, 280)


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
        for near in style.unless_empty(
            [row for row in named if (row["size"] > LEFT_NAMES_FROM * widest) == right]
        )
    )
    return _wide(alt.layer(line, points, *names), max(260, 22 * len(shown)))


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


def break_even(rows: list[Row]) -> Any:
    """Return the epochs until a conversion has paid off, from one format to another."""
    shown = [{**row, **_tile(row)} for row in rows]
    base = alt.Chart(style.data(shown)).encode(
        x=alt.X("to:N", title="converted to", axis=alt.Axis(orient="top", labelAngle=0)),
        y=alt.Y("from:N", title="current format", sort=list(dict.fromkeys(row["from"] for row in rows))),
    )
    tiles = base.mark_rect(stroke="#88888855").encode(
        color=alt.Color(
            "pays:N", scale=alt.Scale(domain=list(FILLS), range=list(FILLS.values())), legend=None
        ),
        tooltip=style.tips("from", "to", "pays", "after epochs", "interval"),
    )
    epochs = base.mark_text(fontSize=13, dy=-7, color="currentColor").encode(text=alt.Text(field="first"))
    ends = base.mark_text(fontSize=11, dy=9, opacity=0.75, color="currentColor").encode(
        text=alt.Text(field="second")
    )
    many = len({row["from"] for row in rows})
    return _wide(tiles + epochs + ends, (48 if many <= MAX_TALL_ROWS else 30) * many)


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


def over_time(rows: list[Row], names: Sequence[str], title: str, share: bool) -> Any:
    """Return figures of the machine over time."""
    unit = MIB if title.startswith("MiB") else 1
    long = [
        {"seconds": row["seconds"], "case": row["case"], "what": heading(name), "value": row[name] / unit}
        for row in rows
        for name in names
        if row[name] is not None
    ]
    axis = alt.Axis(format="%") if share else alt.Axis(format=",~f")
    scale = alt.Scale(domain=[0, 1]) if share else alt.Scale(zero=True)
    chart = (
        alt.Chart(style.data(long))
        .mark_line(interpolate="step-after", strokeWidth=1.5, point=alt.OverlayMarkDef(size=12))
        .encode(
            x=alt.X("seconds:Q", title="seconds into the run"),
            y=alt.Y("value:Q", title=title, axis=axis, scale=scale),
            color=style.series("what", [heading(name) for name in names], columns=3),
            tooltip=style.tips("seconds", "case", "what", "value"),
        )
    )
    return _wide(chart, 200)


def _mib(row: Row) -> Row:
    ends = {end: row.get(f"bytes_per_s {end}") for end in ("low", "high")}
    return {
        "MiB/s": row["bytes_per_s"] / MIB,
        **{end: None if value is None else value / MIB for end, value in ends.items()},
    }


def _vertical(rows: Sequence[Row]) -> Any:
    """Return a vertical axis of MiB/s, logarithmic where values lie too far apart."""
    field, values = "MiB/s", [row["MiB/s"] for row in rows]
    if style.far_apart(values):
        title = f"{SPEED} (logarithmic)"
        return alt.Y(field=field, type="quantitative", title=title, **style.logarithmic_scale(values))
    return alt.Y(field=field, type="quantitative", title=SPEED, axis=alt.Axis(format=",~f", tickCount=5))


def _wide(chart: Any, height: int) -> Any:
    return chart.properties(width="container", height=height)


def _tile(row: Row) -> Row:
    """Return the two lines of a tile, which is too narrow for one line on a phone."""
    if row["pays"] == "yes":
        first = three_digits(row["epochs"])
        second = f"{three_digits(row['epochs low'])} – {three_digits(row['epochs high'])}"
        return {"first": first, "second": second, "after epochs": first, "interval": second}
    return {"first": str(row["pays"]), "second": "", "after epochs": "", "interval": ""}
