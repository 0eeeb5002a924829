"""A chart with what it shows and the table behind it."""

from __future__ import annotations

import base64
import csv
import io
import json
from dataclasses import dataclass
from typing import Any

from iobench.base.units import bytes_text, seconds_text, three_digits
from iobench.report import style
from iobench.report.rows import Row
from iobench.results.metrics import NAMED
from iobench.results.record import plain

PICTURE_WIDTH = 720
UNNAMED = ("key", "place")  # columns for machines alone: they stay out of the page's own tables
ENDS = (" low", " high")
TITLES = {"world_size": "ranks"}  # of facets whose own name is another word


@dataclass(frozen=True)
class Figure:
    """A chart, what it shows, and the rows behind it; a `small` one has room beside another."""

    name: str  # of its files
    title: str
    says: str
    rows: list[Row]
    chart: Any
    small: bool = False

    @property
    def spec(self) -> dict[str, Any]:
        """The chart for a browser."""
        spec: dict[str, Any] = plain(self.chart.to_dict())
        return {**spec, "config": style.CONFIG}

    @property
    def columns(self) -> list[str]:
        """The names of the table's columns."""
        return [name for name in self._names if name not in UNNAMED]

    @property
    def csv(self) -> str:
        """The whole table as the address of a file that the page itself holds."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self._names)
        writer.writeheader()
        writer.writerows(self.rows)
        return "data:text/csv;base64," + base64.b64encode(text.getvalue().encode()).decode()

    def picture(self) -> dict[str, Any]:
        """The chart at a width of its own, on white."""
        spec = json.loads(json.dumps(self.spec).replace('"container"', str(PICTURE_WIDTH)))
        return {**spec, "background": "white", "padding": 12, "title": self.title}

    @property
    def _names(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row))


def heading(column: str) -> str:
    """What heads a column: a metric's title where it holds one."""
    base, end = _base(column)
    if base in NAMED:
        return f"{NAMED[base].title}{end}"
    if base in TITLES:
        return TITLES[base]
    for suffix in ("_bytes_per_s", "_bytes", "_s"):
        base = base.removesuffix(suffix)
    return f"{base.replace('_', ' ')}{end}"


def cell(column: str, value: object) -> str:
    """A value as the tables show it: as its metric is written, or with the unit that its column ends in."""
    base, _ = _base(column)
    if value is None:
        return "–"
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return str(value)
    if base in NAMED:
        return NAMED[base].text(value)
    if base in style.SHARES:
        return f"{value:.1%}"
    if base.endswith("_bytes_per_s"):
        return f"{bytes_text(value)}/s"
    if base.endswith("_bytes"):
        return bytes_text(value)
    if base.endswith("_s") or base == "seconds":
        return seconds_text(value) if value >= 0 else f"-{seconds_text(-value)}"
    return f"{value:,}" if isinstance(value, int) else three_digits(value)


def _base(column: str) -> tuple[str, str]:
    """A column's name without the end of the interval that it holds, and that end."""
    end = next((end for end in ENDS if column.endswith(end)), "")
    return column.removesuffix(end), end
