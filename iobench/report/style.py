"""Common style of all charts: colors, marks, axes, tooltips."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from iobench.results.charts import DATALOADER, LEADER, OTHER
from iobench.results.display import Row

SHARES = ("% of limit", "share", "of the median")  # columns of percentages
STRONG, WEAK, MARK = "#0b7285", "#74838d", "#d9480f"
SCHEME = ["#0b7285", "#d9480f", "#5f3dc4", "#2b8a3e", "#c2255c", "#8d6e00", "#3b5bdb", "#868e96"]
LOGARITHMIC_FROM = 20.0  # largest over smallest, from which on a linear axis would hide small values
STANDINGS = {LEADER: "#1098ad", DATALOADER: MARK, OTHER: "#868e96"}  # legible on white and on black
STAGE_COLOURS = {
    "read": "#0b7285",
    "decode": "#5f3dc4",
    "collate": "#c2255c",
    "wait": "#d9480f",
    "host to device": "#8d6e00",
    "compute": "#2b8a3e",
    "gc": "#e67700",
    "other": "#ced4da",
}
CONFIG: dict[str, Any] = {
    # the page's own color, so that dark mode and print need no other chart
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
    "view": {"stroke": None},
    "background": "transparent",
    "font": "system-ui, sans-serif",
}


def data(rows: Sequence[Row]) -> Any:
    """Return rows as a chart's inline data."""
    return alt.Data(values=list(rows))  # type: ignore[no-untyped-call]


def far_apart(values: Sequence[float]) -> bool:
    """Return whether a linear axis would hide the small values."""
    positive = [value for value in values if value > 0]
    return bool(positive) and max(positive) > LOGARITHMIC_FROM * min(positive)


def logarithmic(values: Sequence[float], room: float = 1.0) -> tuple[Any, Any]:
    """Return the scale and the axis of a logarithmic channel, with `room` for names above the largest."""
    low, high = min(values) / 1.3, max(values) * 1.3 * room
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    return scale, alt.Axis(values=_ticks(low, high), format=",~r")


def colour(rows: Sequence[Row], field: str, known: Mapping[str, str] | None = None) -> Any:
    """Return a color for each value of a field, known or in order, with a legend above the chart."""
    names = dict.fromkeys(row[field] for row in rows)
    if known is None:
        colours = dict(zip(names, itertools.cycle(SCHEME), strict=False))
    else:
        colours = {name: colour for name, colour in known.items() if name in names}
    legend = alt.Legend(orient="top", title=None, columns=1 if known is None else 3, symbolOpacity=1)
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return alt.Color(field=field, type="nominal", scale=scale, legend=legend)


def tips(*names: str) -> list[Any]:
    """Return the tooltips of a mark."""
    return [
        alt.Tooltip(field=name, type="quantitative", format=".0%" if name in SHARES else ",.4~r")
        if name in SHARES or name in _NUMBERS
        else alt.Tooltip(field=name, type="nominal")
        for name in names
    ]


_NUMBERS = ("MiB/s", "size", "seconds", "round", "time", "low", "high", "x")


def _ticks(low: float, high: float) -> list[float]:
    """Return powers of ten, with values between them where there are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high < 1000 * low else (1, 3) if high < 10_000 * low else (1,)
    return [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
