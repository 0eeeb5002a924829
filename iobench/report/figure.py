"""A figure: a chart with its caption and the table behind it."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from iobench.base.units import heading_of, text_of, three_digits
from iobench.report import style
from iobench.results.history import as_csv
from iobench.results.metrics import BY_NAME
from iobench.results.record_file import plain

IMAGE_WIDTH = 720
HIDDEN = ("key", "place")  # columns of the CSV that the page's tables omit
ENDS = (" low", " high")
TITLES = {"world_size": "ranks"}  # of facets with another title than their name


@dataclass(frozen=True)
class Figure:
    """A chart, its caption, and the rows behind it."""

    name: str  # of its files
    title: str
    caption: str
    rows: list[style.Row]
    chart: Any

    @property
    def spec(self) -> dict[str, Any]:
        """The Vega-Lite specification for a browser."""
        spec: dict[str, Any] = plain(self.chart.to_dict())
        return {**spec, "config": style.CONFIG}

    @cached_property
    def columns(self) -> list[str]:
        """The names of the columns shown in the table."""
        return [name for name in self._names if name not in HIDDEN]

    @property
    def csv(self) -> str:
        """The whole table as a data URL of a CSV file."""
        return "data:text/csv;base64," + base64.b64encode(as_csv(self._names, self.rows)).decode()

    def picture(self) -> dict[str, Any]:
        """Return the specification of an image: with a fixed width, on white."""
        spec = json.loads(json.dumps(self.spec).replace('"container"', str(IMAGE_WIDTH)))
        return {**spec, "background": "white", "padding": 12, "title": self.title}

    @cached_property
    def _names(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row))


def heading(column: str) -> str:
    """Return a column's heading: the metric's title where it holds a metric."""
    base, end = _base(column)
    if base in BY_NAME:
        return f"{BY_NAME[base].title}{end}"
    if base in TITLES:
        return TITLES[base]
    return f"{heading_of(base)}{end}"


def cell(column: str, value: object) -> str:
    """Return a value as text, by its metric or by the unit in its column's name."""
    base, _ = _base(column)
    if value is None:
        return "–"
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return str(value)
    if base in BY_NAME:
        return BY_NAME[base].text(value)
    if base in style.SHARES:
        return f"{value:.1%}"
    text = text_of("_s" if base == "seconds" else base, value)
    return text or (f"{value:,}" if isinstance(value, int) else three_digits(value))


def _base(column: str) -> tuple[str, str]:
    """Split a column's name into its base and the end of the interval, if it has one."""
    end = next((end for end in ENDS if column.endswith(end)), "")
    return column.removesuffix(end), end
