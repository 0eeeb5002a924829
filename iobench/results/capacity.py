"""Capacity planning: one host's measurements, extrapolated to a stated cluster.

Every resource is passed by the bytes of one rank, of one node, or of all ranks together. Its capacity is
measured on one host, or stated; the demand grows with the ranks. The resource with the highest utilisation is
exhausted first (the bottleneck law of operational analysis: Denning and Buzen, "The operational analysis of
queueing network models", 1978). Nothing is measured here.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from iobench.base.errors import RecordError
from iobench.base.finding import Finding
from iobench.base.units import bytes_text, counted, seconds_text
from iobench.results import cases
from iobench.results.cluster import (
    NODE,
    RANK,
    SHARDS,
    Cluster,
    Resource,
    ends,
    exact,
    integer_text,
    measured_resources,
    percent_text,
    quantile_interval,
    ranks_per,
    stated_resources,
    with_ends,
)
from iobench.results.record import Record
from iobench.results.run_warning import RunWarning
from iobench.results.stats import ENOUGH_ROUNDS, Estimate


@dataclass(frozen=True)
class ResourceUse:
    """A resource under the load of all ranks.

    `utilisation` is demand over capacity: above 1 the resource is exhausted. `max_ranks` is the number of
    ranks that it can feed, on as many nodes; None for a resource of each rank, which feeds any number.
    """

    resource: Resource
    utilisation: Estimate
    max_ranks: Estimate | None


@dataclass(frozen=True)
class CapacityPlan:
    """Expected throughput of a cluster, the most utilized resource first, and its assumptions."""

    derived: ClassVar = ("outcome", "sentence")

    case: str
    cluster: Cluster
    demand_bytes_per_s: Estimate  # of one rank
    achieved_bytes_per_s: Estimate  # by one rank, of its demand
    uses: list[ResourceUse]
    assumptions: list[Finding]
    warnings: list[RunWarning] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        """`exhausted`, `sufficient`, or `inconclusive` where the interval includes both."""
        low, high = ends(self.uses[0].utilisation)
        return "exhausted" if low > 1 else "inconclusive" if high > 1 else "sufficient"

    @property
    def sentence(self) -> str:
        """The bottleneck, and the number of ranks that it can feed."""
        first, ranks = self.uses[0], counted(self.cluster.ranks, "rank")
        name, utilisation = first.resource.name, percent_text(first.utilisation)
        if self.outcome == "exhausted":
            return f"Bottleneck: {name} ({self._limit(first)}). {self._achieved()}"
        if self.outcome == "inconclusive":
            return f"Inconclusive: {ranks} use {utilisation} of {name}. {self._achieved()}"
        return (
            f"No bottleneck for {ranks} on {counted(self.cluster.nodes, 'node')}: the most utilized resource "
            f"is {name}, at {utilisation}."
        )

    def _limit(self, use: ResourceUse) -> str:
        if use.max_ranks is None:
            return f"for any number of ranks: each uses {percent_text(use.utilisation)} of it"
        limit = f"feeds {integer_text(use.max_ranks)} of {counted(self.cluster.ranks, 'rank')}"
        if use.resource.per == NODE:
            each = Estimate(*(ranks / self.cluster.nodes for ranks in with_ends(use.max_ranks)))
            return f"{limit}, {integer_text(each)} on each of {counted(self.cluster.nodes, 'node')}"
        return limit

    def _achieved(self) -> str:
        demand = self.demand_bytes_per_s.median
        share = Estimate(*(achieved / demand for achieved in with_ends(self.achieved_bytes_per_s)))
        text = f"Each rank gets {percent_text(share)} of its demand"
        if self.cluster.step_s:
            waits = Estimate(1 - share.median, *(1 - end for end in reversed(ends(share))))
            text += f", and its device waits {percent_text(waits)} of the time"
        return f"{text}."


def plan_capacity(records: Sequence[Record], cluster: Cluster) -> CapacityPlan:
    """Plan a cluster's throughput from the fastest case of these records.

    RecordError if no case was measured with one rank and without a training step.
    """
    label, rounds = _fastest(records)
    case, dataset = rounds[0].case, rounds[0].dataset
    logical = rounds[0].timing.logical_bytes / rounds[0].timing.samples * dataset.samples
    per_stored = logical / dataset.stored_bytes if dataset.stored_bytes else 1.0
    loader = quantile_interval([one.bytes_per_s for one in rounds])
    step_bytes = case.get("batch_size", 1) * logical / dataset.samples
    demand = exact(step_bytes / cluster.step_s) if cluster.step_s else loader
    resources = [
        *measured_resources(rounds, cluster, loader),
        *stated_resources(cluster, per_stored, demand, rounds, logical),
    ]
    achieved = [
        min([wanted, *(with_ends(one.bytes_per_s)[end] / ranks_per(one, cluster) for one in resources)])
        for end, wanted in enumerate(with_ends(demand))
    ]
    return CapacityPlan(
        case=label,
        cluster=cluster,
        demand_bytes_per_s=demand,
        achieved_bytes_per_s=Estimate(*achieved),
        uses=sorted((_use(one, demand, cluster) for one in resources), key=_exhaustion_order),
        assumptions=list(_assumptions(rounds, cluster, step_bytes)),
        warnings=list(_warnings(rounds, cluster, logical)),
    )


def _fastest(records: Sequence[Record]) -> tuple[str, list[Record]]:
    """Return the label and the rounds of the fastest case with one rank and without a training step."""
    plain = [one for one in records if one.case.get("world_size", 1) == 1 and not cases.trains(one.case)]
    if not plain:
        raise RecordError(
            "a plan needs a case with one rank and without a training step",
            kind="no-plain-case",
            hint="measure one with 'iobench run --model none'",
        )
    groups = cases.by_case(plain)
    best = max(groups, key=lambda key: statistics.median(one.bytes_per_s for one in groups[key]))
    return str(cases.labels_of(groups)[best]), groups[best]


def _use(resource: Resource, demand: Estimate, cluster: Cluster) -> ResourceUse:
    sharing = ranks_per(resource, cluster)
    (wanted, wanted_low, wanted_high) = with_ends(demand)
    (capacity, capacity_low, capacity_high) = with_ends(resource.bytes_per_s)
    utilisation = Estimate(
        sharing * wanted / capacity,
        sharing * wanted_low / capacity_high,
        sharing * wanted_high / capacity_low,
    )
    if resource.name == SHARDS:  # its capacity was derived from the demand
        utilisation = exact(utilisation.median)
    if resource.per == RANK:
        return ResourceUse(resource, utilisation, None)
    ranks = cluster.nodes * cluster.ranks_per_node if resource.per == NODE else cluster.ranks
    values = (utilisation.median, *reversed(ends(utilisation)))
    return ResourceUse(resource, utilisation, Estimate(*(ranks / value for value in values)))


def _exhaustion_order(use: ResourceUse) -> tuple[bool, float]:
    """Sort key: resources that a single rank exhausts first, then by utilisation."""
    return not (use.max_ranks is None and use.utilisation.median > 1), -use.utilisation.median


def _assumptions(rounds: Sequence[Record], cluster: Cluster, step_bytes: float) -> Iterator[Finding]:
    """Yield the assumptions of a plan; `step_bytes` are the logical bytes of a batch."""
    case, machine = rounds[0].case, rounds[0].machine
    host = machine.host or "the measured host"
    yield Finding(
        "equal-nodes",
        f"every node is like {host} ({machine.cpu}), and every rank loads like the measured one",
        values={"host": machine.host, "cpu": machine.cpu},
    )
    if cluster.step_s:
        yield Finding(
            "step-demand",
            f"a rank needs a batch of {bytes_text(step_bytes)} in every step of "
            f"{seconds_text(cluster.step_s)}, and reads ahead",
            values={"step_bytes": step_bytes, "step_s": cluster.step_s},
        )
    else:
        message = "a rank needs as much as its loader delivered alone"
        yield Finding("loader-demand", message, "give --step-ms for the demand of a training step")
    if cluster.shared:
        yield Finding(
            "shared-storage",
            "all data come over the network in every epoch, no node caches them, and stored bytes are read",
        )
    else:
        cache = str(case.get("cache", "warm"))
        yield Finding(
            "local-copies",
            f"every node has its own copy of all data, read with a {cache} cache",
            values={"cache": cache},
        )
    if cluster.shard_bytes is not None:
        message = "a shard is read by one rank at a time, and by one of its workers where it has any"
        yield Finding("exclusive-shards", message, values={"shard_bytes": cluster.shard_bytes})
    yield Finding(
        "even-sharing",
        "ranks of a node share its CPU, memory, disk and network evenly; intervals span hosts that are all "
        "as slow as the slowest rounds to hosts that are all as fast as the fastest",
    )


def _warnings(rounds: Sequence[Record], cluster: Cluster, logical: float) -> Iterator[RunWarning]:
    """Yield reasons to distrust a plan; `logical` are the bytes of the measured data."""
    machine, whole = rounds[0].machine, cluster.data_bytes or logical
    if rounds[0].case.get("cache") == "warm" and not cluster.shared and whole > machine.memory_bytes > 0:
        yield RunWarning(
            "exceeds-memory",
            f"measured with a warm cache, but {bytes_text(whole)} exceed a node's memory of "
            f"{bytes_text(machine.memory_bytes)}",
            hints=("measure with --cache cold",),
            values={"data_bytes": whole, "memory_bytes": machine.memory_bytes},
        )
    if len(rounds) < ENOUGH_ROUNDS:
        yield RunWarning(
            "few-rounds",
            f"{counted(len(rounds), 'round')}: too few to estimate the variation between hosts",
            hints=(f"measure with --rounds {ENOUGH_ROUNDS} or more",),
            values={"rounds": len(rounds), "enough": ENOUGH_ROUNDS},
        )
