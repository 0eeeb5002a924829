"""Output of `iobench recommend`."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table

from iobench.recommendation.result import Recommendation
from iobench.terminal.tables import plain_table


def parts(found: Recommendation) -> Iterator[RenderableType]:
    """Yield the table of finalists, the answer with its reasons and alternatives, and the code to paste."""
    yield _table(found)
    yield ""
    yield from found.sentences
    for sentence in found.else_:
        yield f"- {sentence}"
    if found.not_tried:
        yield ""
        yield "Not tried:"
        yield from (f"- {sentence}" for sentence in found.not_tried)
    if found.prepare:
        yield from ("", "To write all of it:", "", found.prepare)
    yield from ("", "To load it:", "", *found.code.splitlines())


def _table(found: Recommendation) -> Table:
    titles = [title for title, _ in found.columns]
    table = plain_table(*titles, left=1)
    table.columns[-1].justify = "left"
    for cells in zip(*(cells for _, cells in found.columns), strict=True):
        table.add_row(*(cell or "" for cell in cells))
    return table
