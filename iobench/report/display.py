"""Blocks of a result as HTML, on the page and in a notebook, and its charts."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import groupby
from typing import Any

from iobench.base.errors import MissingDependency, RecordError, needing
from iobench.base.text import is_numeric, printable
from iobench.results.display import NOTEBOOK, Block, Chart, Columns

SHARED_KEYS = ("$schema", "config", "background", "padding")  # of a chart, shared by concatenated charts
NUMBERS = "text-align: right; padding: 0.1em 0.5em; font-variant-numeric: tabular-nums"
WORDS = NUMBERS.replace("right", "left") + "; white-space: normal"  # a notebook has no style sheet
OPTION = re.compile(r"--[a-z][a-z-]*")


def html(blocks: Iterable[Block]) -> str:
    """Return blocks as HTML for a notebook, of their charts the first as an image."""
    parts = list(blocks)
    first = next((block for block in parts if block.chart), None)
    try:
        with needing("a chart", NOTEBOOK):
            image = _image(first.chart) if first and first.chart else ""
    except MissingDependency as error:
        image = html_of([Block("text", [str(error)])])
    return f"<div>{html_of(parts, lambda chart: image if first and chart is first.chart else '')}</div>"


def plot(blocks: Iterable[Block]) -> Any:
    """Return the charts among blocks as one; RecordError without any, MissingDependency without altair."""
    charts = [block.chart for block in blocks if block.chart]
    with needing("a chart", NOTEBOOK):
        import altair

        from iobench.report.figure import Figure

        specs = [Figure(chart).picture() for chart in charts]
    if not specs:
        raise RecordError("there is nothing to plot", kind="empty")
    return altair.Chart.from_dict(_concatenated(specs))


def html_of(blocks: Iterable[Block], draw: Callable[[Chart], str] = lambda chart: "") -> str:
    """Return blocks as HTML, their charts as `draw` returns them, and warnings in a row in one box."""
    parts = list[str]()
    for warns, group in groupby(blocks, lambda block: block.style == "warning"):
        if warns:
            items = "".join(f"<li>{_sentence(line)}</li>" for block in group for line in block.lines)
            parts.append(f'<section class="warnings"><h3>Warnings</h3><ul>{items}</ul></section>')
        else:
            parts += [draw(block.chart) if block.chart else _html(block) for block in group]
    return "".join(parts)


def _html(block: Block) -> str:
    title = f"<h3>{_text(block.title)}</h3>" if block.title else ""
    if block.style == "table":
        return _table(block.columns)
    if block.style == "code":
        code = escape("\n".join(block.lines))
        return f"{title}<pre><code>{code}</code></pre>"
    if block.style == "list":
        return f"{title}<ul>{''.join(f'<li>{_sentence(line)}</li>' for line in block.lines)}</ul>"
    if block.style == "answer":
        return "".join(f'<p class="answer"><strong>{_sentence(line)}.</strong></p>' for line in block.lines)
    return "".join(f"<p>{_sentence(line)}.</p>" for line in block.lines)


def _table(columns: Columns) -> str:
    """Return a table whose cells carry their titles: on a phone each row is a list of them."""
    titles = [_text(title.replace("\n", " ")) for title, _ in columns]
    styles = [NUMBERS if number and is_numeric(cells) else WORDS for number, (_, cells) in enumerate(columns)]
    heads = "".join(
        f'<th style="{style}">{"<br>".join(map(_text, title.splitlines()))}</th>'
        for style, (title, _) in zip(styles, columns, strict=True)
    )
    rows = (
        "".join(
            f'<td style="{style}" data-title="{title}">{_text(cell or "")}</td>'
            for style, title, cell in zip(styles, titles, cells, strict=True)
        )
        for cells in zip(*(cells for _, cells in columns), strict=True)
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    head = f"<thead><tr>{heads}</tr></thead>" if any(titles) else ""
    return f'<div class="wide"><table class="stacked">{head}<tbody>{body}</tbody></table></div>'


def _sentence(line: str) -> str:
    """Return a line as HTML that does not break within an option such as --rounds."""
    return OPTION.sub(r'<span style="white-space: nowrap">\g<0></span>', _text(line))


def _text(text: str) -> str:
    return escape(printable(text))


def _image(chart: Chart) -> str:
    """Return a chart as an embedded image, which needs no network wherever the notebook is shown."""
    import vl_convert

    from iobench.report.figure import Figure

    svg = base64.b64encode(vl_convert.vegalite_to_svg(Figure(chart).picture()).encode()).decode()
    return f'<img alt="{escape(chart.title)}" src="data:image/svg+xml;base64,{svg}">'


def _concatenated(specs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first, *others = specs
    if not others:
        return first
    shared = {name: first[name] for name in SHARED_KEYS if name in first}
    parts = [{name: part for name, part in one.items() if name not in SHARED_KEYS} for one in specs]
    return {**shared, "vconcat": parts}
