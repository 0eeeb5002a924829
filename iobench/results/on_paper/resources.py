"""What the bytes of many ranks have to pass: measured on one host, or stated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from iobench.base.units import bytes_text, counted
from iobench.results.on_paper.cluster import Cluster
from iobench.results.on_paper.intervals import exactly, known, spread
from iobench.results.record import Record
from iobench.results.stats import Estimate

RANK, NODE, ALL = "rank", "node", "all"
SHARDS = "the shards"


@dataclass(frozen=True)
class Resource:
    """Something that bytes pass: logical bytes per second of one of it, and where the figure is from."""

    name: str
    per: str  # rank, node or all
    bytes_per_s: Estimate
    source: str


def measured(rounds: Sequence[Record], cluster: Cluster, loader: Estimate) -> Iterator[Resource]:
    """What was measured on one host."""
    if cluster.step_s:  # else it is what each rank asks for
        source = f"measured, {counted(len(rounds), 'round')} with one rank"
        yield Resource("the loader", RANK, loader, source)
    cores = rounds[0].machine.usable_cores or rounds[0].machine.cores
    if cores:
        speeds = [one.timing.logical_bytes / one.processor.cpu_s for one in rounds if one.processor.cpu_s > 0]
        if len(speeds) == len(rounds):
            found = spread([cores * speed for speed in speeds])
            yield Resource(
                "the processors of a node", NODE, found, f"measured, {counted(cores, 'core')} on one host"
            )
    limits = [one.limit for one in rounds if one.limit]
    name = limits[0].name if limits else ""
    if name == "host to device":
        looks = [one.now_bytes_per_s or one.bytes_per_s for one in limits]
        yield Resource("the way to a device", RANK, spread(looks), "measured on one device")
    elif limits and not (cluster.shared and name.startswith("disk")):
        looks = [one.now_bytes_per_s or one.bytes_per_s for one in limits]
        yield Resource(f"the {name} of a node", NODE, spread(looks), "measured on one host")


def stated(
    cluster: Cluster, per_stored: float, asked: Estimate, rounds: Sequence[Record], logical: float
) -> Iterator[Resource]:
    """What was not measured: logical bytes, as many for each stored one as in the measured format."""
    if cluster.network_bytes_per_s is not None:
        rate = cluster.network_bytes_per_s
        yield Resource("the network of a node", NODE, exactly(rate * per_stored), "stated")
    if cluster.storage_bytes_per_s is not None:
        rate = cluster.storage_bytes_per_s
        yield Resource("the storage", ALL, exactly(rate * per_stored), "stated")
    if cluster.shard_bytes is not None:
        stored = (cluster.data_bytes or logical) / per_stored
        fed = math.ceil(stored / cluster.shard_bytes) / _readers(rounds)
        found = Estimate(*(fed * want for want in known(asked)))
        yield Resource(SHARDS, ALL, found, f"{bytes_text(stored)} in shards of the size stated")


def _readers(rounds: Sequence[Record]) -> int:
    """How many of a rank want a shard of their own."""
    return max(1, int((rounds[0].case.get("options") or {}).get("num_workers") or 0))


def ranks_per(resource: Resource, cluster: Cluster) -> int:
    """How many ranks use one of it."""
    return {RANK: 1, NODE: cluster.ranks_per_node, ALL: cluster.ranks}[resource.per]
