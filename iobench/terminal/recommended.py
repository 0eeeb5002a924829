"""Output of `iobench recommend`."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table

from iobench.recommendation.result import Recommendation
from iobench.terminal.tables import plain_table


def parts(recommendation: Recommendation) -> Iterator[RenderableType]:
    """Yield the table of finalists, the answer with its reasons and alternatives, and the code to paste."""
    yield _table(recommendation)
    yield ""
    yield from (one.sentence for one in recommendation.findings)
    if recommendation.alternatives:
        yield from ("", "Alternatives:")
        yield from (f"- {one.sentence}" for one in recommendation.alternatives)
    if recommendation.skipped:
        yield from ("", "Skipped or failed:")
        yield from (f"- {one.sentence}" for one in recommendation.skipped)
    if recommendation.prepare:
        yield from ("", "Write the full data:", "", recommendation.prepare)
    yield from ("", "Load them:", "", *recommendation.code.splitlines())


def _table(recommendation: Recommendation) -> Table:
    titles = [title for title, _ in recommendation.columns]
    table = plain_table(*titles, left=1)
    table.columns[-1].justify = "left"
    for cells in zip(*(cells for _, cells in recommendation.columns), strict=True):
        table.add_row(*(cell or "" for cell in cells))
    return table
