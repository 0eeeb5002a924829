"""Charts with a row for each case: its name, and its marks below. Cases are identified by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import altair as alt

from iobench.base.units import MIB, counted
from iobench.report import style
from iobench.report.rows import WAITS, Row
from iobench.results.metrics import BY_NAME, Metric

STEP, TIGHT = 32, 28  # pixels per case, and where there are many
MANY = 16
ABOVE, BELOW = -8, 7  # offset of name and marks from the middle of a row
SECOND = 15  # more pixels where a case's name and its note do not fit in one line on a phone


def speeds(rows: list[Row], rounds: list[Row], notes: dict[str, str]) -> Any:
    """Return each case's median with its interval, rounds and limit; `notes` follow the names."""
    points = [*_limits(rows), *_rounds(rounds), *_medians(rows)]
    known = [row for row in rows if row["bytes_per_s low"] is not None]
    ends = [
        {**row, "MiB/s": row["bytes_per_s low"] / MIB, "to": row["bytes_per_s high"] / MIB} for row in known
    ]
    reached = [
        *(point["MiB/s"] for point in points),
        *(end[side] for end in ends for side in ("MiB/s", "to")),
    ]
    axis = style.number("MiB/s", BY_NAME["bytes_per_s"].title, reached)
    names = _Names(rows, notes)
    interval = (
        alt.Chart(style.data(ends))
        .mark_rule(yOffset=names.below, strokeWidth=3, color=style.MARKS[style.INTERVAL][1])
        .encode(y=names.places, x=axis, x2=alt.X2(field="to"))
        for ends in style.unless_empty(ends)
    )
    marks = (
        alt.Chart(style.data(points))
        .mark_point(filled=True, yOffset=names.below, opacity=1)
        .encode(
            y=names.places, x=axis, tooltip=style.tips("case", "what", "MiB/s", "more"), **_appearance(points)
        )
    )
    return names.above(*interval, marks)


def stages(rows: list[Row]) -> Any:
    """Return a bar for each case, stacked by the stages of its epochs."""
    used = {row["stage"] for row in rows}
    colours = {stage: colour for stage, colour in style.STAGE_COLOURS.items() if stage in used}
    names = _Names(rows)
    bars = (
        alt.Chart(style.data(rows))
        .mark_bar(size=12, yOffset=names.below)
        .encode(
            y=names.places,
            x=alt.X(
                "share:Q",
                title="share of the epochs",
                axis=alt.Axis(format="%", tickCount=5),
                scale=alt.Scale(domain=[0, 1]),
            ),
            order=alt.Order("place:Q"),
            color=alt.Color(
                "stage:N",
                scale=alt.Scale(domain=list(colours), range=list(colours.values())),
                legend=style.legend(),
            ),
            tooltip=style.tips("case", "stage", "seconds", "share"),
        )
    )
    return names.above(bars)


def waits(rows: list[Row]) -> Any:
    """Return the waits of each case on a logarithmic axis."""
    shown = [{**row, "ms": row["seconds"] * 1000} for row in rows]
    kinds = [what for what in WAITS.values() if any(row["what"] == what for row in rows)]
    names = _Names(rows)
    shapes = dict(zip(WAITS.values(), ("circle", "triangle-right", "square", "diamond"), strict=True))
    points = (
        alt.Chart(style.data(shown))
        .mark_point(filled=True, size=80, yOffset=names.below, opacity=1)
        .encode(
            y=names.places,
            x=style.logarithmic("ms", "milliseconds", [row["ms"] for row in shown]),
            color=style.series("what", kinds, columns=2),
            shape=alt.Shape(
                "what:N",
                scale=alt.Scale(domain=kinds, range=[shapes[kind] for kind in kinds]),
                legend=style.legend(2),
            ),
            tooltip=style.tips("case", "what", "ms"),
        )
    )
    return names.above(points)


def bars(rows: list[Row], metric: Metric, unit: float, title: str) -> Any:
    """Return a bar for each case that has the metric, with the figure next to its name.

    Where figures lie too far apart for bars, they are points on a logarithmic axis.
    """
    known = [{**row, "value": row[metric.name] / unit} for row in rows if row[metric.name] is not None]
    names = _Names(known, {row["key"]: metric.text(row[metric.name]) for row in known})
    values = [row["value"] for row in known]
    base = alt.Chart(style.data(known)).encode(
        y=names.places, x=style.number("value", title, values), tooltip=style.tips("case", "value")
    )
    look: dict[str, Any] = {"yOffset": names.below, "color": style.LIKE}
    if style.far_apart(values):
        return names.above(base.mark_point(filled=True, size=110, opacity=1, **look))
    return names.above(base.mark_bar(size=10, **look))


class _Names:
    """The rows of the cases, each with its name, and a note next to it or below."""

    def __init__(self, rows: Sequence[Row], notes: dict[str, str] | None = None) -> None:
        labels = {row["key"]: row["case"] for row in rows}
        texts = notes or {}
        self._rows = [
            {"key": key, "case": label, "note": texts.get(key, "")} for key, label in labels.items()
        ]
        wide = max((len(label) + len(texts.get(key, "")) for key, label in labels.items()), default=0)
        self._more = SECOND if wide > style.NARROW else 0
        self.below = BELOW + self._more // 2
        self.places = alt.Y("key:N", sort=list(labels), axis=None)

    def above(self, *layers: Any) -> Any:
        """Return the chart of these layers with the names above the marks, at full width."""
        step = STEP if len(self._rows) <= MANY else TIGHT
        height = max(1, len(self._rows)) * (step + self._more)
        chart = alt.layer(*layers, self._text("case", "left", ABOVE - self._more // 2, 13, 1), self._notes())
        return chart.properties(width="container", height=height)

    def _notes(self) -> Any:
        if self._more:
            return self._text("note", "left", ABOVE + self._more // 2, 12, 0.75)
        return self._text("note", "right", ABOVE, 12, 0.75)

    def _text(self, field: str, side: Literal["left", "right"], up: int, size: int, opacity: float) -> Any:
        x = alt.value(0) if side == "left" else alt.value("width")
        return (
            alt.Chart(style.data(self._rows))
            .mark_text(
                align=side, baseline="middle", dy=up, fontSize=size, opacity=opacity, color="currentColor"
            )
            .encode(y=self.places, x=x, text=alt.Text(field=field, type="nominal"))
        )


def _appearance(points: Sequence[Row]) -> dict[str, Any]:
    """Return shape, color and size by the kind of mark, with one legend of the kinds that occur."""
    present = {point["what"] for point in points} | {style.INTERVAL}
    marks = {what: look for what, look in style.MARKS.items() if what in present}
    shapes, colours, sizes = (list(values) for values in zip(*marks.values(), strict=True))
    scales = {"shape": shapes, "color": colours, "size": sizes}
    kinds = {"shape": alt.Shape, "color": alt.Color, "size": alt.Size}
    return {
        channel: kinds[channel](
            "what:N",
            sort=list(marks),
            scale=alt.Scale(domain=list(marks), range=values),
            legend=style.legend(2),
        )
        for channel, values in scales.items()
    }


def _medians(rows: Sequence[Row]) -> list[Row]:
    return [_point(row, row["standing"], "bytes_per_s", counted(row["rounds"], "round")) for row in rows]


def _rounds(rounds: Sequence[Row]) -> list[Row]:
    return [_point(row, style.ROUND, "bytes_per_s", f"round {row['round']}") for row in rounds]


def _limits(rows: Sequence[Row]) -> list[Row]:
    known = [row for row in rows if row["limit_bytes_per_s"]]
    return [_point(row, style.LIMIT, "limit_bytes_per_s", row["limit"]) for row in known]


def _point(row: Row, what: str, metric: str, more: str) -> Row:
    return {"key": row["key"], "case": row["case"], "what": what, "MiB/s": row[metric] / MIB, "more": more}
