"""HTML of a result's parts."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from iobench.base.text import is_numeric, printable
from iobench.results.columns import Columns
from iobench.results.display import Block

NUMBERS = "text-align: right; padding: 0.1em 0.8em; font-variant-numeric: tabular-nums"
WORDS = NUMBERS.replace("right", "left")  # a notebook has no style sheet


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
    titles = [title for title, _ in columns]
    styles = [NUMBERS if number and is_numeric(cells) else WORDS for number, (_, cells) in enumerate(columns)]
    heads = "".join(
        f'<th style="{style}">{_text(title)}</th>' for style, title in zip(styles, titles, strict=True)
    )
    rows = (
        "".join(
            f'<td style="{style}" data-title="{_text(title)}">{_text(cell or "")}</td>'
            for style, title, cell in zip(styles, titles, cells, strict=True)
        )
        for cells in zip(*(cells for _, cells in columns), strict=True)
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    head = f"<thead><tr>{heads}</tr></thead>" if any(titles) else ""
    return f'<table class="stacked">{head}<tbody>{body}</tbody></table>'


def _text(text: str) -> str:
    return escape(printable(text))
