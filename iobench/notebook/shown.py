"""What every result has in a notebook: HTML by itself, a data frame, a chart."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import wraps
from html import escape
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from iobench.base.errors import (
    MissingDependency,
    RecordError,
)
from iobench.base.text import printable
from iobench.results.columns import Columns

if TYPE_CHECKING:
    from iobench.report.figure import Figure

P = ParamSpec("P")
Plain = TypeVar("Plain")
Made = TypeVar("Made", bound="Shown")

OUTSIDE = ("$schema", "config", "background", "padding")  # of a chart: what charts below each other share
NUMBERS = "text-align: right; padding: 0.1em 0.8em; font-variant-numeric: tabular-nums; white-space: nowrap"
WORDS = NUMBERS.replace("right", "left")


class Shown(ABC):
    """A result that shows itself in a notebook."""

    @abstractmethod
    def _sentences(self) -> list[str]:
        """What it says, the most important first."""

    @abstractmethod
    def _columns(self) -> Columns:
        """Its table; empty where there is nothing to show. The first column holds names."""

    @abstractmethod
    def _rows(self) -> list[dict[str, Any]]:
        """Its data, a row for each thing that was measured."""

    @abstractmethod
    def _figures(self) -> list[Figure]:
        """Its charts, the first first; ImportError without what draws them."""

    def _code(self) -> str:
        """What can be copied out of it."""
        return ""

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` of its data; MissingDependency without pandas."""
        try:
            import pandas
        except ImportError as error:
            raise _missing("a data frame", error) from error
        return pandas.DataFrame(self._rows())

    def plot(self) -> Any:
        """Its charts below each other, as one chart of altair's.

        MissingDependency without altair, RecordError where nothing was measured.
        """
        try:
            pictures = [figure.picture() for figure in self._figures()]
            import altair
        except ImportError as error:
            raise _missing("a chart", error) from error
        if not pictures:
            raise RecordError("nothing was measured, so there is nothing to draw")
        return altair.Chart.from_dict(_joined(pictures))

    def _repr_html_(self) -> str:
        """Its table, what it says, and its first chart, where something can draw."""
        try:
            chart = "".join(map(_image, self._figures()[:1]))
        except ImportError as error:
            chart = _paragraph(str(_missing("a chart", error)))
        said = "".join(map(_paragraph, self._sentences()))
        code = f"<pre><code>{escape(self._code())}</code></pre>" if self._code() else ""
        return f"<div>{_table(self._columns())}{said}{chart}{code}</div>"


def handing_out(made: type[Made], call: Callable[P, Plain]) -> Callable[P, Made]:
    """The same call with a result that a notebook can show: `made` has the fields of what `call` returns."""

    @wraps(call)
    def calling(*args: P.args, **kwargs: P.kwargs) -> Made:
        return made(**vars(call(*args, **kwargs)))

    return calling


def _missing(what: str, error: ImportError) -> MissingDependency:
    return MissingDependency(f"{what} needs {error.name}: pip install 'iobench[notebook]'")


def _table(columns: Columns) -> str:
    if not columns:
        return ""
    styles = [NUMBERS if _is_figures(cells) else WORDS for _, cells in columns]
    heads = "".join(_cell("th", *each) for each in zip(styles, (title for title, _ in columns), strict=True))
    rows = [
        "".join(_cell("td", *each) for each in zip(styles, cells, strict=True))
        for cells in zip(*(cells for _, cells in columns), strict=True)
    ]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _is_figures(cells: Sequence[str | None]) -> bool:
    return all(not cell or cell[0].isdigit() or cell == "–" for cell in cells)


def _cell(kind: str, style: str, text: str | None) -> str:
    return f'<{kind} style="{style}">{escape(printable(text or ""))}</{kind}>'


def _paragraph(text: str) -> str:
    return f"<p>{escape(printable(text))}</p>"


def _image(figure: Figure) -> str:
    """A chart as a picture, which needs no network and survives wherever the notebook is shown."""
    import vl_convert

    drawn = base64.b64encode(vl_convert.vegalite_to_svg(figure.picture()).encode()).decode()
    return f'<img alt="{escape(figure.title)}" src="data:image/svg+xml;base64,{drawn}">'


def _joined(pictures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Charts below each other as one."""
    first, *others = pictures
    if not others:
        return first
    shared = {name: first[name] for name in OUTSIDE if name in first}
    inside = [{name: part for name, part in one.items() if name not in OUTSIDE} for one in pictures]
    return {**shared, "vconcat": inside}
