"""Blocks of a result as HTML, on the page and in a notebook, and its charts."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from iobench.base.errors import MissingDependency, RecordError, needing
from iobench.base.text import is_numeric, printable
from iobench.results.display import NOTEBOOK, Block, Columns, Displayed

if TYPE_CHECKING:
    from iobench.report.figure import Figure

SHARED_KEYS = ("$schema", "config", "background", "padding")  # of a chart, shared by concatenated charts
NUMBERS = "text-align: right; padding: 0.1em 0.8em; font-variant-numeric: tabular-nums"
WORDS = NUMBERS.replace("right", "left")  # a notebook has no style sheet


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


def html_of(blocks: Iterable[Block]) -> str:
    """Return the parts of a result as HTML."""
    return "".join(map(_html, blocks))


def _html(block: Block) -> str:
    title = f"<h3>{_text(block.title)}</h3>" if block.title else ""
    if block.style == "table":
        return _table(block.columns)
    if block.style == "code":
        code = escape("\n".join(block.lines))
        return f"{title}<pre><code>{code}</code></pre>"
    if block.style == "list":
        return f"{title}<ul>{''.join(f'<li>{_text(line)}</li>' for line in block.lines)}</ul>"
    if block.style == "warning":
        return "".join(f'<p class="warnings">Warning: {_text(line)}.</p>' for line in block.lines)
    if block.style == "answer":
        return "".join(f'<p class="answer"><strong>{_text(line)}.</strong></p>' for line in block.lines)
    return "".join(f"<p>{_text(line)}.</p>" for line in block.lines)


def _table(columns: Columns) -> str:
    """Return a table whose cells carry their titles: on a phone each row is a list of them."""
    titles = [_text(title.replace("\n", " ")) for title, _ in columns]
    styles = [NUMBERS if number and is_numeric(cells) else WORDS for number, (_, cells) in enumerate(columns)]
    heads = "".join(f'<th style="{style}">{title}</th>' for style, title in zip(styles, titles, strict=True))
    rows = (
        "".join(
            f'<td style="{style}" data-title="{title}">{_text(cell or "")}</td>'
            for style, title, cell in zip(styles, titles, cells, strict=True)
        )
        for cells in zip(*(cells for _, cells in columns), strict=True)
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    head = f"<thead><tr>{heads}</tr></thead>" if any(titles) else ""
    return f'<table class="stacked">{head}<tbody>{body}</tbody></table>'


def _text(text: str) -> str:
    return escape(printable(text))


def _figures(result: Displayed) -> list[Figure]:
    from iobench.report import figures

    return figures.figures_of(result)


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
