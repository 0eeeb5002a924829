"""Resources on the path of many ranks' bytes: measured on one host, or stated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from iobench.base.units import bytes_text, counted
from iobench.results.capacity.cluster import Cluster
from iobench.results.capacity.intervals import exact, quantile_interval, with_ends
from iobench.results.record import Record
from iobench.results.stats import Estimate

RANK, NODE, ALL = "rank", "node", "all"
LOADER, NODE_CPU, DEVICE_LINK, NETWORK = "loader", "node CPU", "host-to-device link", "node network"
STORAGE, SHARDS = "storage", "shards"


@dataclass(frozen=True)
class Resource:
    """A resource that bytes pass: its capacity in logical bytes per second, and the source of that figure."""

    name: str
    per: str  # rank, node or all
    bytes_per_s: Estimate
    source: str


def measured_resources(rounds: Sequence[Record], cluster: Cluster, loader: Estimate) -> Iterator[Resource]:
    """Yield the resources that were measured on one host."""
    if cluster.step_s:  # otherwise the loader defines the demand
        yield Resource(LOADER, RANK, loader, f"measured, {counted(len(rounds), 'round')} with one rank")
    cores = rounds[0].machine.usable_cores or rounds[0].machine.cores
    if cores:
        speeds = [one.timing.logical_bytes / one.processor.cpu_s for one in rounds if one.processor.cpu_s > 0]
        if len(speeds) == len(rounds):
            capacity = quantile_interval([cores * speed for speed in speeds])
            yield Resource(NODE_CPU, NODE, capacity, f"measured, {counted(cores, 'core')} on one host")
    limits = [one.limit for one in rounds if one.limit]
    name = limits[0].name if limits else ""
    rates = [one.now_bytes_per_s or one.bytes_per_s for one in limits]
    if name == "host to device":
        yield Resource(DEVICE_LINK, RANK, quantile_interval(rates), "measured on one device")
    elif limits and not (cluster.shared and name.startswith("disk")):
        yield Resource(f"node {name}", NODE, quantile_interval(rates), "measured on one host")


def stated_resources(
    cluster: Cluster, per_stored: float, demand: Estimate, rounds: Sequence[Record], logical: float
) -> Iterator[Resource]:
    """Yield the stated resources, with the measured format's logical bytes per stored byte."""
    if cluster.network_bytes_per_s is not None:
        yield Resource(NETWORK, NODE, exact(cluster.network_bytes_per_s * per_stored), "stated")
    if cluster.storage_bytes_per_s is not None:
        yield Resource(STORAGE, ALL, exact(cluster.storage_bytes_per_s * per_stored), "stated")
    if cluster.shard_bytes is not None:
        stored = (cluster.data_bytes or logical) / per_stored
        ranks = math.ceil(stored / cluster.shard_bytes) / _readers_per_rank(rounds)
        capacity = Estimate(*(ranks * wanted for wanted in with_ends(demand)))
        yield Resource(SHARDS, ALL, capacity, f"{bytes_text(stored)} in shards of the stated size")


def _readers_per_rank(rounds: Sequence[Record]) -> int:
    """Return the number of workers of a rank that each need a shard of their own; at least 1."""
    return max(1, int((rounds[0].case.get("options") or {}).get("num_workers") or 0))


def ranks_per(resource: Resource, cluster: Cluster) -> int:
    """Return the number of ranks that share one instance of a resource."""
    return {RANK: 1, NODE: cluster.ranks_per_node, ALL: cluster.ranks}[resource.per]
