"""A cluster as stated by the user, and the resources on the path of its ranks' bytes: measured or stated.

Intervals span the slowest to the fastest of hosts like the measured one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from iobench.base.errors import InvalidSettings
from iobench.base.units import bytes_text, counted
from iobench.results.record import Record
from iobench.results.stats import Estimate

QUANTILES = (0.025, 0.975)  # of the rounds: ranks that step together wait for the slowest host
RANK, NODE, ALL = "rank", "node", "all"
LOADER, NODE_CPU, DEVICE_LINK, NETWORK = "loader", "node CPU", "host-to-device link", "node network"
STORAGE, SHARDS = "storage", "shards"


@dataclass(frozen=True)
class Cluster:
    """Ranks, nodes, and the path between them and the data.

    The data come over the network if its bandwidth or that of the storage is stated; otherwise every node has
    its own copy.
    """

    ranks: int  # devices that train together
    nodes: int  # machines that hold them
    network_bytes_per_s: float | None = None  # bandwidth of one node's network
    storage_bytes_per_s: float | None = None  # bandwidth of the storage, for all nodes together
    shard_bytes: float | None = None  # size of the files that hold the data
    data_bytes: float | None = None  # logical bytes of all data; by default those that were measured
    step_s: float = 0.0  # seconds of a training step; 0 where a rank takes batches as fast as they come

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= self.ranks:
            raise InvalidSettings(
                f"{counted(self.ranks, 'rank')} on {counted(self.nodes, 'node')}",
                kind="out-of-range",
                hint="give at least one rank for each node",
            )
        stated = (self.network_bytes_per_s, self.storage_bytes_per_s, self.shard_bytes, self.data_bytes)
        if not all(one is None or 0 < one < math.inf for one in stated) or not 0 <= self.step_s < math.inf:
            raise InvalidSettings("bandwidths, sizes and times must be above 0", kind="out-of-range")

    @property
    def shared(self) -> bool:
        """True if the data come over the network."""
        return self.network_bytes_per_s is not None or self.storage_bytes_per_s is not None

    @property
    def ranks_per_node(self) -> int:
        """Ranks on the fullest node."""
        return -(-self.ranks // self.nodes)


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
        workers = int((rounds[0].case.get("options") or {}).get("num_workers") or 0)  # each needs a shard
        ranks = math.ceil(stored / cluster.shard_bytes) / max(1, workers)
        capacity = Estimate(*(ranks * wanted for wanted in with_ends(demand)))
        yield Resource(SHARDS, ALL, capacity, f"{bytes_text(stored)} in shards of the stated size")


def ranks_per(resource: Resource, cluster: Cluster) -> int:
    """Return the number of ranks that share one instance of a resource."""
    return {RANK: 1, NODE: cluster.ranks_per_node, ALL: cluster.ranks}[resource.per]


def quantile_interval(values: Sequence[float]) -> Estimate:
    """Return the median with the interval that contains nearly all values."""
    low, high = (float(np.quantile(values, q)) for q in QUANTILES)
    return Estimate(statistics.median(values), low, high)


def exact(value: float) -> Estimate:
    """Return a stated value, or one derived from stated values, with an interval of no width."""
    return Estimate(value, value, value)


def with_ends(estimate: Estimate) -> tuple[float, float, float]:
    """Return median, low and high."""
    return (estimate.median, *ends(estimate))


def ends(estimate: Estimate) -> tuple[float, float]:
    """Return low and high; the median in place of missing ends."""
    return estimate.ends or (estimate.median, estimate.median)


def integer_text(estimate: Estimate) -> str:
    """Return whole numbers, rounded down, with their interval."""
    return _text(estimate, lambda value: f"{math.floor(value * (1 + 1e-9)):,}")


def percent_text(estimate: Estimate) -> str:
    """Return shares as percentages, with their interval."""
    return _text(estimate, lambda value: f"{value:.0%}")


def _text(estimate: Estimate, text: Callable[[float], str]) -> str:
    low, high = map(text, ends(estimate))
    return low if low == high else estimate.text(text, ends=" ({} to {})")
