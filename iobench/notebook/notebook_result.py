"""Base of all results in a notebook: HTML display, a data frame, a chart."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import wraps
from html import escape
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from iobench.base.errors import MissingDependency, RecordError
from iobench.base.text import printable
from iobench.results.columns import Columns

if TYPE_CHECKING:
    from iobench.report.figure import Figure

P = ParamSpec("P")
Plain = TypeVar("Plain")
Rich = TypeVar("Rich", bound="NotebookResult")

SHARED_KEYS = ("$schema", "config", "background", "padding")  # of a chart, shared by concatenated charts
NUMBERS = "text-align: right; padding: 0.1em 0.8em; font-variant-numeric: tabular-nums; white-space: nowrap"
WORDS = NUMBERS.replace("right", "left")


class NotebookResult(ABC):
    """A result with a display in a notebook."""

    @abstractmethod
    def _sentences(self) -> list[str]:
        """Return its statements, the most important first."""

    @abstractmethod
    def _columns(self) -> Columns:
        """Return its table, the first column with names; empty where there is nothing to show."""

    @abstractmethod
    def _rows(self) -> list[dict[str, Any]]:
        """Return its data, one row per measured item."""

    @abstractmethod
    def _figures(self) -> list[Figure]:
        """Return its charts, the most important first; ImportError without the plotting library."""

    def _code(self) -> str:
        """Return its code to copy; empty by default."""
        return ""

    def to_pandas(self) -> Any:
        """Return its data as a `pandas.DataFrame`; MissingDependency without pandas."""
        try:
            import pandas
        except ImportError as error:
            raise _missing("a data frame", error) from error
        return pandas.DataFrame(self._rows())

    def plot(self) -> Any:
        """Return its charts as one `altair.Chart`, below each other.

        Raises
        ------
        MissingDependency
            Without altair.
        RecordError
            If nothing was measured.
        """
        try:
            specs = [figure.picture() for figure in self._figures()]
            import altair
        except ImportError as error:
            raise _missing("a chart", error) from error
        if not specs:
            raise RecordError("nothing was measured, so there is nothing to plot", kind="empty")
        return altair.Chart.from_dict(_concatenated(specs))

    def _repr_html_(self) -> str:
        """Return its table, statements, first chart and code as HTML."""
        try:
            chart = "".join(map(_image, self._figures()[:1]))
        except ImportError as error:
            chart = _paragraph(str(_missing("a chart", error)))
        statements = "".join(map(_paragraph, self._sentences()))
        code = f"<pre><code>{escape(self._code())}</code></pre>" if self._code() else ""
        return f"<div>{_table(self._columns())}{statements}{chart}{code}</div>"


def with_result_type(made: type[Rich], call: Callable[P, Plain]) -> Callable[P, Rich]:
    """Return `call` with its result converted to `made`, which has the same fields."""

    @wraps(call)
    def calling(*args: P.args, **kwargs: P.kwargs) -> Rich:
        return made(**vars(call(*args, **kwargs)))

    return calling


def _missing(what: str, error: ImportError) -> MissingDependency:
    return MissingDependency(f"{what} needs {error.name}", hint="pip install 'iobench[notebook]'")


def _table(columns: Columns) -> str:
    if not columns:
        return ""
    styles = [NUMBERS if _is_numeric(cells) else WORDS for _, cells in columns]
    heads = "".join(_cell("th", *each) for each in zip(styles, (title for title, _ in columns), strict=True))
    rows = [
        "".join(_cell("td", *each) for each in zip(styles, cells, strict=True))
        for cells in zip(*(cells for _, cells in columns), strict=True)
    ]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _is_numeric(cells: Sequence[str | None]) -> bool:
    return all(not cell or cell[0].isdigit() or cell == "–" for cell in cells)


def _cell(kind: str, style: str, text: str | None) -> str:
    return f'<{kind} style="{style}">{escape(printable(text or ""))}</{kind}>'


def _paragraph(text: str) -> str:
    return f"<p>{escape(printable(text))}</p>"


def _image(figure: Figure) -> str:
    """Return a chart as an embedded image, which needs no network wherever the notebook is shown."""
    import vl_convert

    svg = base64.b64encode(vl_convert.vegalite_to_svg(figure.picture()).encode()).decode()
    return f'<img alt="{escape(figure.title)}" src="data:image/svg+xml;base64,{svg}">'


def _concatenated(specs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return charts below each other as one specification."""
    first, *others = specs
    if not others:
        return first
    shared = {name: first[name] for name in SHARED_KEYS if name in first}
    parts = [{name: part for name, part in one.items() if name not in SHARED_KEYS} for one in specs]
    return {**shared, "vconcat": parts}
