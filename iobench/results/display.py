"""Results as blocks: a result yields its blocks, and each renderer draws blocks and knows no result.

The renderers are the terminal (`terminal/display.py`, with Markdown), the page of a report and the notebook
(`report/display.py`).
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from iobench.base.errors import needing

Columns = list[tuple[str, list[str | None]]]  # titles, each with one cell per row
Row = dict[str, Any]  # of a chart and the table behind it
NOTEBOOK = "notebook"  # extra of iobench that installs the libraries of displays


@dataclass(frozen=True)
class Chart:
    """A chart of one of six kinds, its caption, and the rows behind it."""

    kind: Literal["speeds", "stages", "sizes", "rounds", "over_runs", "against"]
    name: str  # of its files
    title: str
    caption: str
    rows: list[Row]  # of its table
    keys: Collection[str] | None = None  # of the rows that are drawn; None for all
    axis: str = ""  # the number that `against` has speeds over

    @property
    def drawn(self) -> list[Row]:
        """The rows that are drawn."""
        return [row for row in self.rows if self.keys is None or row["key"] in self.keys]


@dataclass(frozen=True)
class Block:
    """Part of a displayed result."""

    style: Literal["answer", "text", "list", "warning", "table", "chart", "code"]
    # ``answer``: the main sentence; ``list``: items below a title; ``warning``: a reason not to believe it,
    # whose title is its kind
    lines: list[str] = field(default_factory=list)  # sentences, items, or lines of code
    title: str = ""  # title of a list, of code, or kind of a warning
    columns: Columns = field(default_factory=list)  # titles and cells of a table
    heads: int = 1  # its first columns, which name a row
    chart: Chart | None = None


def table(titles: Sequence[str], rows: Iterable[Sequence[str | None]], heads: int = 1) -> Block:
    """Return a table of rows of text, without the columns that are empty; its first `heads` name a row."""
    cells = list(rows)
    columns = [(title, [row[place] for row in cells]) for place, title in enumerate(titles)]
    shown = [(title, column) for title, column in columns if any(column) or not cells]
    return Block("table", columns=shown, heads=heads)


class Displayed(ABC):
    """A result with a display in a notebook, a data frame and a chart."""

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """Yield its parts, the answer first."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """Return its data, one row per measured item."""

    def to_pandas(self) -> Any:
        """Return its data as a `pandas.DataFrame`; MissingDependency without pandas."""
        with needing("a data frame", NOTEBOOK):
            import pandas
        return pandas.DataFrame(self.rows())

    def plot(self) -> Any:
        """Return its charts as one `altair.Chart`, below each other.

        MissingDependency without altair. RecordError if there is nothing to plot (``empty``).
        """
        return _renderer().plot(self.blocks())

    def _repr_html_(self) -> str:
        """Return its blocks as HTML, of its charts the first."""
        return str(_renderer().html(self.blocks()))


def _renderer() -> Any:
    """Return the module that draws results; the package itself names it, as it is in a room above."""
    return sys.modules["iobench"].renderer()
