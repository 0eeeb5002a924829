"""What many ranks would get → terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import RenderableType
from rich.table import Table

from iobench.base.units import MIB, counted, three_digits
from iobench.results.on_paper import ALL, NODE, RANK, Outlook, Use
from iobench.results.stats import Estimate
from iobench.terminal.tables import plain_table

EACH = {RANK: "each rank", NODE: "each node", ALL: "all ranks"}


def parts(found: Outlook) -> Iterator[RenderableType]:
    """What is planned, each resource, which is exhausted first, and what all of it assumes."""
    cluster = found.cluster
    on = f"{counted(cluster.ranks, 'rank')} on {counted(cluster.nodes, 'node')}"
    asked = _ends(found.asked_bytes_per_s, lambda value: three_digits(value / MIB))
    yield f"{on}, on paper: {found.case}, each rank asks for {asked} MiB/s"
    yield ""
    yield _table(found)
    yield ""
    yield found.sentence
    yield "It assumes that"
    yield from (f"- {one}" for one in found.assumptions)


def _table(found: Outlook) -> Table:
    table = plain_table("resource", "for", "MiB/s", "used", "enough for ranks", "known from", left=2)
    for use in found.uses:
        table.add_row(
            use.resource.name,
            EACH[use.resource.per],
            _ends(use.resource.bytes_per_s, lambda value: three_digits(value / MIB)),
            _ends(use.used, lambda value: f"{value:.0%}"),
            _until(use),
            use.resource.source,
        )
    table.columns[-1].justify = "left"
    return table


def _until(use: Use) -> str:
    if use.until is None:
        return "any" if use.used.median <= 1 else "none"
    return _ends(use.until, lambda value: f"{int(value * (1 + 1e-9)):,}")


def _ends(estimate: Estimate, text: Callable[[float], str]) -> str:
    middle = text(estimate.median)
    if estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return middle
    return f"{middle} ({text(estimate.low)} – {text(estimate.high)})"
