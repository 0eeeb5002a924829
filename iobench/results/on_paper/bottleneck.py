"""What a cluster would get, and which of its resources is exhausted first."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from iobench.base.errors import (
    RecordError,
)
from iobench.base.units import counted
from iobench.results import cases
from iobench.results.on_paper.assumptions import assumptions_of, warnings_of
from iobench.results.on_paper.cluster import Cluster
from iobench.results.on_paper.intervals import ends, exactly, known, numbers, percents, spread
from iobench.results.on_paper.resources import NODE, RANK, SHARDS, Resource, measured, ranks_per, stated
from iobench.results.record import Record
from iobench.results.stats import Estimate


@dataclass(frozen=True)
class Use:
    """A resource under the load of all ranks.

    `used` is the part of it that is asked for: above 1 it is exhausted. `until` is the number of ranks that
    it feeds, on as many nodes; None where it is one for each rank and feeds any number of them.
    """

    resource: Resource
    used: Estimate
    until: Estimate | None


@dataclass(frozen=True)
class Outlook:
    """What a cluster would get: the most used resource first, and what all of that assumes."""

    case: str
    cluster: Cluster
    asked_bytes_per_s: Estimate  # by one rank
    got_bytes_per_s: Estimate  # by one rank, of what it asks for
    uses: list[Use]
    assumptions: list[str]
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "sentence": self.sentence}

    @property
    def sentence(self) -> str:
        """Which resource is exhausted first, and at what size."""
        first, ranks = self.uses[0], self.cluster.ranks
        used, name = first.used, first.resource.name
        low, high = ends(used)
        if low > 1:
            return f"Exhausted first: {name} ({self._size(first)}). {self._left()}"
        if high > 1:
            return (
                f"It cannot be told whether {name} can feed {counted(ranks, 'rank')}: they ask for "
                f"{percents(used)} of it. {self._left()}"
            )
        return (
            f"Nothing is exhausted by {counted(ranks, 'rank')} on {counted(self.cluster.nodes, 'node')}: the "
            f"most used is {name}, of which they ask for {percents(used)}."
        )

    def _size(self, first: Use) -> str:
        if first.until is None:
            return f"whatever the number of ranks: each asks for {percents(first.used)} of what it has"
        most = f"enough for {numbers(first.until)} of {counted(self.cluster.ranks, 'rank')}"
        if first.resource.per == NODE:
            each = Estimate(*(fed / self.cluster.nodes for fed in known(first.until)))
            return f"{most}, {numbers(each)} on each of {counted(self.cluster.nodes, 'node')}"
        return most

    def _left(self) -> str:
        share = Estimate(*(got / self.asked_bytes_per_s.median for got in known(self.got_bytes_per_s)))
        said = f"With all of them each rank gets {percents(share)} of what it asks for"
        if self.cluster.step_s:
            waits = Estimate(1 - share.median, *(1 - end for end in reversed(ends(share))))
            said += f", and its device waits {percents(waits)} of the time"
        return f"{said}."


def outlook(records: Sequence[Record], cluster: Cluster) -> Outlook:
    """What ranks of a cluster would get, from the fastest case of these records.

    RecordError where none was measured with one rank and without a training step.
    """
    label, rounds = _fastest(records)
    case, dataset = rounds[0].case, rounds[0].dataset
    logical = rounds[0].timing.logical_bytes / rounds[0].timing.samples * dataset.samples
    per_stored = logical / dataset.stored_bytes if dataset.stored_bytes else 1.0
    loader = spread([one.bytes_per_s for one in rounds])
    step_bytes = case.get("batch_size", 1) * logical / dataset.samples
    asked = exactly(step_bytes / cluster.step_s) if cluster.step_s else loader
    resources = [*measured(rounds, cluster, loader), *stated(cluster, per_stored, asked, rounds, logical)]
    got = [
        min([want, *(known(one.bytes_per_s)[end] / ranks_per(one, cluster) for one in resources)])
        for end, want in enumerate(known(asked))
    ]
    return Outlook(
        case=label,
        cluster=cluster,
        asked_bytes_per_s=asked,
        got_bytes_per_s=Estimate(*got),
        uses=sorted((_use(one, asked, cluster) for one in resources), key=_when),
        assumptions=list(assumptions_of(rounds, cluster, step_bytes)),
        warnings=list(warnings_of(rounds, cluster, logical)),
    )


def _fastest(records: Sequence[Record]) -> tuple[str, list[Record]]:
    """The label and the rounds of the fastest case that was measured alone and without a step."""
    plain = [one for one in records if one.case.get("world_size", 1) == 1 and not cases.trains(one.case)]
    if not plain:
        raise RecordError(
            "no case here was measured with one rank and without a training step, which is what a plan is "
            "made from; measure one with 'iobench run --model none'"
        )
    groups = cases.by_case(plain)
    best = max(groups, key=lambda key: statistics.median(one.bytes_per_s for one in groups[key]))
    return str(cases.labels_of(plain)[best]), groups[best]


def _use(resource: Resource, asked: Estimate, cluster: Cluster) -> Use:
    sharing = ranks_per(resource, cluster)
    (want, least, most), (has, low, high) = known(asked), known(resource.bytes_per_s)
    used = Estimate(sharing * want / has, sharing * least / high, sharing * most / low)
    if resource.name == SHARDS:  # it was made from what is asked for
        used = exactly(used.median)
    if resource.per == RANK:
        return Use(resource, used, None)
    feeds = cluster.nodes * cluster.ranks_per_node if resource.per == NODE else cluster.ranks
    return Use(resource, used, Estimate(*(feeds / one for one in (used.median, *reversed(ends(used))))))


def _when(use: Use) -> tuple[bool, float]:
    """What sorts resources by when they are exhausted as ranks are added: first what one rank exhausts."""
    return not (use.until is None and use.used.median > 1), -use.used.median
