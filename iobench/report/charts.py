"""Rows → charts, each declared once for the page and for pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from iobench.report.figures import Row

STEP = 36  # pixels from one bar to the next: a label above, the bar below
BELOW = 7  # from the middle of a step to the middle of its bar
STRONG, LIKE, WEAK, MARK = "#0b7285", "#66a9b5", "#a9b3ba", "#d9480f"
SPEED = "MiB/s of data on the device"
SCHEME = ["#0b7285", "#d9480f", "#5f3dc4", "#2b8a3e", "#c2255c", "#8d6e00", "#3b5bdb", "#868e96"]
STAGE_COLOURS = {
    "open": "#868e96",
    "read": "#0b7285",
    "decode": "#5f3dc4",
    "collate": "#c2255c",
    "wait": "#d9480f",
    "host to device": "#8d6e00",
    "compute": "#2b8a3e",
    "other": "#ced4da",
}
CONFIG: dict[str, Any] = {
    # the page's own colour, so that dark mode and print need no other chart
    "axis": {
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "gridColor": "#88888833",
        "domainColor": "#88888888",
        "tickColor": "#88888888",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "legend": {
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "labelFontSize": 12,
        "labelLimit": 0,
    },
    "header": {"labelColor": "currentColor", "titleColor": "currentColor"},
    "view": {"stroke": None},
    "background": "transparent",
    "font": "system-ui, sans-serif",
}


def speeds(rows: list[Row], rounds: list[Row]) -> Any:
    """A bar for each case with its interval, its rounds as points and its limit as a tick."""
    order = [row["case"] for row in rows]
    base = alt.Chart(_data(rows)).encode(y=_labels(order))
    standings = ["fastest", "not told apart from it", "slower"]
    colour = alt.Color(
        field="standing",
        type="nominal",
        scale=alt.Scale(domain=standings, range=[STRONG, LIKE, WEAK]),
        legend=alt.Legend(orient="top", title=None),
    )
    bars = base.mark_bar(size=12, yOffset=BELOW).encode(
        x=_number("MiB/s", SPEED),
        color=colour,
        tooltip=_tips(
            "case", "MiB/s", "MiB/s low", "MiB/s high", "samples/s", "limit", "limit MiB/s", "reached"
        ),
    )
    interval = base.mark_rule(yOffset=BELOW, strokeWidth=2, color="currentColor").encode(
        x=_number("MiB/s low", SPEED), x2=alt.X2(field="MiB/s high")
    )
    limit = base.mark_tick(yOffset=BELOW, size=20, thickness=3, color=MARK, opacity=1).encode(
        x=_number("limit MiB/s", SPEED), tooltip=_tips("case", "limit", "limit MiB/s", "reached")
    )
    points = (
        alt.Chart(_data(rounds))
        .mark_point(yOffset=BELOW, size=24, strokeWidth=1.5, color="currentColor", opacity=0.8)
        .encode(
            y=_labels(order),
            x=_number("MiB/s", SPEED),
            tooltip=_tips("case", "round", "MiB/s", "seconds", "when"),
        )
    )
    return _sized(bars + interval + limit + points, len(order))


def cold_and_warm(rows: list[Row]) -> Any:
    """Two bars for each case."""
    order = list(dict.fromkeys(row["case"] for row in sorted(rows, key=lambda row: -row["MiB/s"])))
    chart = (
        alt.Chart(_data(rows))
        .mark_bar(size=8)
        .encode(
            y=_labels(order, above=16),
            yOffset=alt.YOffset(field="cache", type="nominal", scale=alt.Scale(range=[16, 34])),
            x=_number("MiB/s", SPEED),
            color=alt.Color(
                field="cache",
                type="nominal",
                scale=alt.Scale(domain=["cold", "warm"], range=["#3b5bdb", MARK]),
                legend=alt.Legend(orient="top", title=None),
            ),
            tooltip=_tips("case", "cache", "MiB/s", "MiB/s low", "MiB/s high"),
        )
    )
    return _sized(chart, len(order), step=STEP + 8)


def against(rows: list[Row], what: str) -> Any:
    """Lines of speed over one thing that runs vary."""
    logarithmic = min(row[what] or 0 for row in rows) > 0
    x = alt.X(
        field=what,
        type="quantitative",
        title=what,
        scale=alt.Scale(type="log", base=2) if logarithmic else alt.Scale(),
        axis=alt.Axis(values=sorted({row[what] for row in rows}), format=",~f"),
    )
    chart = (
        alt.Chart(_data(rows))
        .mark_line(point=alt.OverlayMarkDef(size=45), strokeWidth=2)
        .encode(
            x=x,
            y=alt.Y(field="MiB/s", type="quantitative", scale=alt.Scale(zero=True)),
            color=_series("series"),
            tooltip=_tips("series", what, "MiB/s", "samples/s", "rounds"),
        )
    )
    return chart.properties(width="container", height=280)


def stages(rows: list[Row]) -> Any:
    """A bar for each case, stacked by what its time went to."""
    order = list(dict.fromkeys(row["case"] for row in rows))
    chart = (
        alt.Chart(_data(rows))
        .mark_bar(size=14, yOffset=BELOW)
        .encode(
            y=_labels(order),
            x=alt.X(
                field="share",
                type="quantitative",
                title="of opening and epoch",
                axis=alt.Axis(format="%"),
                scale=alt.Scale(domain=[0, 1]),
            ),
            order=alt.Order(field="place", type="quantitative"),
            color=alt.Color(
                field="stage",
                type="nominal",
                scale=alt.Scale(domain=list(STAGE_COLOURS), range=list(STAGE_COLOURS.values())),
                legend=alt.Legend(orient="top", title=None, columns=4),
            ),
            tooltip=_tips("case", "stage", "seconds", "share"),
        )
    )
    return _sized(chart, len(order))


def waits(rows: list[Row]) -> Any:
    """Percentiles of the wait for a batch, on a logarithmic axis."""
    order = list(dict.fromkeys(row["case"] for row in rows))
    chart = (
        alt.Chart(_data(rows))
        .mark_point(filled=True, size=70, yOffset=BELOW, opacity=1)
        .encode(
            y=_labels(order),
            x=alt.X(
                field="ms",
                type="quantitative",
                title="milliseconds in next(), logarithmic",
                scale=alt.Scale(type="log"),
                axis=alt.Axis(values=[10.0**power for power in range(-4, 7)], format="~g"),
            ),
            color=_series("what", ["p50", "p99", "first batch"]),
            shape=alt.Shape(field="what", type="nominal", legend=None),
            tooltip=_tips("case", "what", "ms"),
        )
    )
    return _sized(chart, len(order))


def bars(rows: list[Row], what: str, title: str) -> Any:
    """A plain bar for each case that has the figure."""
    known = [row for row in rows if row[what] is not None]
    chart = (
        alt.Chart(_data(known))
        .mark_bar(size=12, yOffset=BELOW, color=LIKE)
        .encode(
            y=_labels([row["case"] for row in known]), x=_number(what, title), tooltip=_tips("case", what)
        )
    )
    return _sized(chart, len(known))


def sizes(rows: list[Row]) -> Any:
    """Stored size against the speed of each format's fastest case."""
    base = alt.Chart(_data(rows)).encode(
        x=_number("stored MiB", "MiB on disk"), y=alt.Y(field="MiB/s", type="quantitative")
    )
    points = base.mark_circle(size=120, color=STRONG, opacity=1).encode(
        tooltip=_tips("format", "stored MiB", "MiB/s", "case")
    )
    names = base.mark_text(align="right", dx=-9, fontSize=12, color="currentColor").encode(
        text=alt.Text(field="format", type="nominal")
    )
    return (points + names).properties(width="container", height=260)


def break_even(rows: list[Row]) -> Any:
    """Epochs until a conversion has paid for itself, from one format to another."""
    shown = [{**row, "shown": _epochs(row["epochs"]), "pays": row["epochs"] is not None} for row in rows]
    base = alt.Chart(_data(shown)).encode(
        x=alt.X(
            field="to", type="nominal", title="written anew as", axis=alt.Axis(orient="top", labelAngle=0)
        ),
        y=alt.Y(field="from", type="nominal", title="read until now as"),
    )
    tiles = base.mark_rect(stroke="#88888855").encode(
        color=alt.Color(
            field="pays",
            type="nominal",
            scale=alt.Scale(domain=[True, False], range=[f"{LIKE}66", f"{WEAK}22"]),
            legend=None,
        ),
        tooltip=_tips("from", "to", "write s", "saved s", "epochs"),
    )
    return (tiles + base.mark_text(fontSize=13, color="currentColor").encode(text="shown:N")).properties(
        width="container", height=40 * len({row["from"] for row in rows})
    )


def course(rows: list[Row]) -> Any:
    """Every round over its case's median, in the order of rounds."""
    chart = (
        alt.Chart(_data(rows))
        .mark_point(filled=True, size=45, opacity=0.7, color=STRONG)
        .encode(
            x=alt.X(
                field="round",
                type="quantitative",
                axis=alt.Axis(tickMinStep=1, format="d"),
                scale=alt.Scale(zero=False, padding=20),
            ),
            y=alt.Y(
                field="of the median",
                type="quantitative",
                axis=alt.Axis(format="%"),
                scale=alt.Scale(zero=False),
            ),
            tooltip=_tips("case", "round", "MiB/s", "of the median", "when"),
        )
    )
    return chart.properties(width="container", height=220)


def over_time(rows: list[Row], names: Sequence[str], title: str, share: bool) -> Any:
    """Figures of the machine, second by second."""
    long = [
        {"seconds": row["seconds"], "case": row["case"], "what": name, "value": row[name]}
        for row in rows
        for name in names
        if row[name] is not None
    ]
    axis = alt.Axis(format="%") if share else alt.Axis(format=",~f")
    scale = alt.Scale(domain=[0, 1]) if share else alt.Scale(zero=True)
    chart = (
        alt.Chart(_data(long))
        .mark_line(interpolate="step-after", strokeWidth=1.5, point=alt.OverlayMarkDef(size=12))
        .encode(
            x=alt.X(field="seconds", type="quantitative", title="seconds into the run"),
            y=alt.Y(field="value", type="quantitative", title=title, axis=axis, scale=scale),
            color=_series("what", list(names)),
            tooltip=_tips("seconds", "case", "what", "value"),
        )
    )
    return chart.properties(width="container", height=200)


def _data(rows: list[Row]) -> Any:
    return alt.Data(values=rows)  # type: ignore[no-untyped-call]


def _labels(order: Sequence[str], above: int = 9) -> Any:
    """Names above their bars, so that they need no room beside them on a narrow screen."""
    axis = alt.Axis(
        title=None,
        ticks=False,
        domain=False,
        labelAlign="left",
        labelPadding=-4,
        labelOffset=-above,
        labelLimit=0,
        labelFontSize=13,
    )
    return alt.Y(field="case", type="nominal", sort=list(order), axis=axis)


def _number(name: str, title: str) -> Any:
    return alt.X(field=name, type="quantitative", title=title, axis=alt.Axis(format=",~f", tickCount=5))


def _series(name: str, domain: list[str] | None = None) -> Any:
    scale = alt.Scale(range=SCHEME) if domain is None else alt.Scale(domain=domain, range=SCHEME)
    return alt.Color(
        field=name,
        type="nominal",
        scale=scale,
        legend=alt.Legend(orient="top", title=None, columns=1 if domain is None else 3),
    )


_SHARES = ("reached", "share", "of the median", "disk/data")
_WORDS = ("case", "limit", "cache", "series", "stage", "what", "format", "from", "to", "when")


def _tips(*names: str) -> list[Any]:
    return [
        alt.Tooltip(field=name, type="nominal")
        if name in _WORDS
        else alt.Tooltip(field=name, type="quantitative", format=".0%" if name in _SHARES else ",.4~r")
        for name in names
    ]


def _sized(chart: Any, count: int, step: int = STEP) -> Any:
    return chart.properties(width="container", height=max(1, count) * step)


def _epochs(value: float | None) -> str:
    if value is None:
        return "never"
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"
