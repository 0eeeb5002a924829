"""Output of `iobench plan`: the capacity that many ranks would get."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import RenderableType
from rich.table import Table

from iobench.base.units import counted
from iobench.results.capacity import CapacityPlan, ResourceUse
from iobench.results.cluster import ALL, NODE, RANK
from iobench.results.metrics import mib_text
from iobench.results.stats import Estimate
from iobench.terminal.tables import plain_table

EACH = {RANK: "each rank", NODE: "each node", ALL: "all ranks"}


def parts(plan: CapacityPlan) -> Iterator[RenderableType]:
    """Yield the plan, a table of resources, the bottleneck, and the assumptions."""
    cluster = plan.cluster
    on = f"{counted(cluster.ranks, 'rank')} on {counted(cluster.nodes, 'node')}"
    demand = _ends(plan.demand_bytes_per_s, mib_text)
    yield f"{on}, estimated from {plan.case}: each rank demands {demand} MiB/s"
    yield ""
    yield _table(plan)
    yield ""
    yield plan.sentence
    yield "Assumptions:"
    yield from (f"- {one}" for one in plan.assumptions)


def _table(plan: CapacityPlan) -> Table:
    table = plain_table("resource", "for", "MiB/s", "used", "enough for ranks", "known from", left=2)
    for use in plan.uses:
        table.add_row(
            use.resource.name,
            EACH[use.resource.per],
            _ends(use.resource.bytes_per_s, mib_text),
            _ends(use.utilisation, lambda value: f"{value:.0%}"),
            _until(use),
            use.resource.source,
        )
    table.columns[-1].justify = "left"
    return table


def _until(use: ResourceUse) -> str:
    if use.max_ranks is None:
        return "any" if use.utilisation.median <= 1 else "none"
    return _ends(use.max_ranks, lambda value: f"{int(value * (1 + 1e-9)):,}")


def _ends(estimate: Estimate, text: Callable[[float], str]) -> str:
    return text(estimate.median) if estimate.low == estimate.high else estimate.text(text)
