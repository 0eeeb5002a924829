"""Results in a notebook: their parts as HTML, and their charts."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from iobench.base.errors import MissingDependency, RecordError, needing
from iobench.report.blocks import html_of
from iobench.results.display import NOTEBOOK, Block, Displayed

if TYPE_CHECKING:
    from iobench.report.figure import Figure

SHARED_KEYS = ("$schema", "config", "background", "padding")  # of a chart, shared by concatenated charts


def html(result: Displayed) -> str:
    """Return the parts of a result and its first chart as HTML."""
    try:
        with needing("a chart", NOTEBOOK):
            chart = "".join(map(_image, _figures(result)[:1]))
    except MissingDependency as error:
        chart = html_of([Block("text", [str(error)])])
    return f"<div>{html_of(result.blocks())}{chart}</div>"


def plot(result: Displayed) -> Any:
    """Return the charts of a result as one; RecordError without any, MissingDependency without altair."""
    with needing("a chart", NOTEBOOK):
        specs = [figure.picture() for figure in _figures(result)]
        import altair
    if not specs:
        raise RecordError("there is nothing to plot", kind="empty")
    return altair.Chart.from_dict(_concatenated(specs))


def _figures(result: Displayed) -> list[Figure]:
    from iobench.report import result_figures

    return result_figures.figures_of(result)


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
