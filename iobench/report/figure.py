"""A figure: a chart as Vega-Lite draws it, and the table behind it."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from iobench.base.units import text_of, three_digits
from iobench.report import charts, style
from iobench.results.charts import base_of
from iobench.results.display import Chart
from iobench.results.history import as_csv
from iobench.results.metrics import BY_NAME
from iobench.results.record_file import plain

IMAGE_WIDTH = 720
HIDDEN = ("key", "place")  # columns of the CSV that the page's tables omit


@dataclass(frozen=True)
class Figure:
    """A chart with its specification and its table."""

    chart: Chart

    @cached_property
    def spec(self) -> dict[str, Any]:
        """The Vega-Lite specification for a browser."""
        spec: dict[str, Any] = plain(charts.drawn(self.chart).to_dict())
        return {**spec, "config": style.CONFIG}

    @cached_property
    def columns(self) -> list[str]:
        """The names of the columns shown in the table."""
        return [name for name in self._names if name not in HIDDEN]

    @property
    def csv(self) -> str:
        """The whole table as a data URL of a CSV file."""
        return "data:text/csv;base64," + base64.b64encode(as_csv(self._names, self.chart.rows)).decode()

    def picture(self) -> dict[str, Any]:
        """Return the specification of an image: with a fixed width, on white."""
        spec = json.loads(json.dumps(self.spec).replace('"container"', str(IMAGE_WIDTH)))
        return {**spec, "background": "white", "padding": 12, "title": self.chart.title}

    @cached_property
    def _names(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.chart.rows for name in row))


def cell(column: str, value: object) -> str:
    """Return a value as text, by its metric or by the unit in its column's name."""
    base, _ = base_of(column)
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
