"""What many ranks would get, on paper: one host's measurements held against what is stated of a cluster.

Every resource is passed by the bytes of one rank, of one node, or of all ranks together. What it can pass is
measured on one host, or stated; what is asked of it grows with the ranks. The one that is asked for the
largest part of what it has is exhausted first (the bottleneck law of operational analysis: Denning and
Buzen, "The operational analysis of queueing network models", 1978). Nothing is measured here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from iobench.errors import InvalidSettings, RecordError
from iobench.results import cases
from iobench.results.record import Record
from iobench.results.stats import ENOUGH, Estimate
from iobench.units import bytes_text, counted, seconds_text

SPREAD = (0.025, 0.975)  # quantiles of the rounds: ranks that step together wait for the slowest host
RANK, NODE, ALL = "rank", "node", "all"
SHARDS = "the shards"


@dataclass(frozen=True)
class Cluster:
    """What is stated: how many ranks on how many nodes, and what lies between them and the data.

    `network_bytes_per_s` is of one node, `storage_bytes_per_s` of all nodes together; the data come from
    there where either is stated, and else from each node's own copy. `step_s`: what a training step takes,
    0 where a rank takes batches as fast as its loader gives them. `data_bytes`: logical bytes of all the
    data, by default those that were measured.
    """

    ranks: int
    nodes: int
    network_bytes_per_s: float | None = None
    storage_bytes_per_s: float | None = None
    shard_bytes: float | None = None
    data_bytes: float | None = None
    step_s: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= self.ranks:
            raise InvalidSettings(
                f"{counted(self.ranks, 'rank')} on {counted(self.nodes, 'node')}: give at least one rank "
                "for each node"
            )
        stated = (self.network_bytes_per_s, self.storage_bytes_per_s, self.shard_bytes, self.data_bytes)
        if not all(one is None or 0 < one < math.inf for one in stated) or not 0 <= self.step_s < math.inf:
            raise InvalidSettings("bandwidths, sizes and times have to be above 0")

    @property
    def shared(self) -> bool:
        """Whether the data come over the network."""
        return self.network_bytes_per_s is not None or self.storage_bytes_per_s is not None

    @property
    def ranks_per_node(self) -> int:
        """On the fullest node."""
        return -(-self.ranks // self.nodes)


@dataclass(frozen=True)
class Resource:
    """Something that bytes pass: logical bytes per second of one of it, and where the figure is from."""

    name: str
    per: str  # rank, node or all
    bytes_per_s: Estimate
    source: str


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
        low, high = _ends(used)
        if low > 1:
            return f"Exhausted first: {name} ({self._size(first)}). {self._left()}"
        if high > 1:
            return (
                f"It cannot be told whether {name} can feed {counted(ranks, 'rank')}: they ask for "
                f"{_percents(used)} of it. {self._left()}"
            )
        return (
            f"Nothing is exhausted by {counted(ranks, 'rank')} on {counted(self.cluster.nodes, 'node')}: the "
            f"most used is {name}, of which they ask for {_percents(used)}."
        )

    def _size(self, first: Use) -> str:
        if first.until is None:
            return f"whatever the number of ranks: each asks for {_percents(first.used)} of what it has"
        most = f"enough for {_numbers(first.until)} of {counted(self.cluster.ranks, 'rank')}"
        if first.resource.per == NODE:
            each = Estimate(*(fed / self.cluster.nodes for fed in _known(first.until)))
            return f"{most}, {_numbers(each)} on each of {counted(self.cluster.nodes, 'node')}"
        return most

    def _left(self) -> str:
        share = Estimate(*(got / self.asked_bytes_per_s.median for got in _known(self.got_bytes_per_s)))
        said = f"With all of them each rank gets {_percents(share)} of what it asks for"
        if self.cluster.step_s:
            waits = Estimate(1 - share.median, *(1 - end for end in reversed(_ends(share))))
            said += f", and its device waits {_percents(waits)} of the time"
        return f"{said}."


def outlook(records: Sequence[Record], cluster: Cluster) -> Outlook:
    """What ranks of a cluster would get, from the fastest case of these records.

    RecordError where none was measured with one rank and without a training step.
    """
    label, rounds = _fastest(records)
    case, dataset = rounds[0].case, rounds[0].dataset
    logical = rounds[0].timing.logical_bytes / rounds[0].timing.samples * dataset.samples
    per_stored = logical / dataset.stored_bytes if dataset.stored_bytes else 1.0
    loader = _spread([one.bytes_per_s for one in rounds])
    step_bytes = case.get("batch_size", 1) * logical / dataset.samples
    asked = _exactly(step_bytes / cluster.step_s) if cluster.step_s else loader
    resources = [*_of_a_host(rounds, cluster, loader), *_stated(cluster, per_stored, asked, rounds, logical)]
    got = [
        min([want, *(_known(one.bytes_per_s)[end] / _loads(one, cluster) for one in resources)])
        for end, want in enumerate(_known(asked))
    ]
    return Outlook(
        case=label,
        cluster=cluster,
        asked_bytes_per_s=asked,
        got_bytes_per_s=Estimate(*got),
        uses=sorted((_use(one, asked, cluster) for one in resources), key=_when),
        assumptions=list(_assumptions(rounds, cluster, step_bytes)),
        warnings=list(_warnings(rounds, cluster, logical)),
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


def _of_a_host(rounds: Sequence[Record], cluster: Cluster, loader: Estimate) -> Iterator[Resource]:
    """What was measured on one host."""
    if cluster.step_s:  # else it is what each rank asks for
        source = f"measured, {counted(len(rounds), 'round')} with one rank"
        yield Resource("the loader", RANK, loader, source)
    cores = rounds[0].machine.usable_cores or rounds[0].machine.cores
    if cores:
        speeds = [one.timing.logical_bytes / one.processor.cpu_s for one in rounds if one.processor.cpu_s > 0]
        if len(speeds) == len(rounds):
            found = _spread([cores * speed for speed in speeds])
            yield Resource(
                "the processors of a node", NODE, found, f"measured, {counted(cores, 'core')} on one host"
            )
    limits = [one.limit for one in rounds if one.limit]
    name = limits[0].name if limits else ""
    if name == "host to device":
        looks = [one.now_bytes_per_s or one.bytes_per_s for one in limits]
        yield Resource("the way to a device", RANK, _spread(looks), "measured on one device")
    elif limits and not (cluster.shared and name.startswith("disk")):
        looks = [one.now_bytes_per_s or one.bytes_per_s for one in limits]
        yield Resource(f"the {name} of a node", NODE, _spread(looks), "measured on one host")


def _stated(
    cluster: Cluster, per_stored: float, asked: Estimate, rounds: Sequence[Record], logical: float
) -> Iterator[Resource]:
    """What was not measured: logical bytes, as many for each stored one as in the measured format."""
    if cluster.network_bytes_per_s is not None:
        rate = cluster.network_bytes_per_s
        yield Resource("the network of a node", NODE, _exactly(rate * per_stored), "stated")
    if cluster.storage_bytes_per_s is not None:
        rate = cluster.storage_bytes_per_s
        yield Resource("the storage", ALL, _exactly(rate * per_stored), "stated")
    if cluster.shard_bytes is not None:
        stored = (cluster.data_bytes or logical) / per_stored
        fed = math.ceil(stored / cluster.shard_bytes) / _readers(rounds)
        found = Estimate(*(fed * want for want in _known(asked)))
        yield Resource(SHARDS, ALL, found, f"{bytes_text(stored)} in shards of the size stated")


def _readers(rounds: Sequence[Record]) -> int:
    """How many of a rank want a shard of their own."""
    return max(1, int((rounds[0].case.get("options") or {}).get("num_workers") or 0))


def _use(resource: Resource, asked: Estimate, cluster: Cluster) -> Use:
    loads = _loads(resource, cluster)
    (want, least, most), (has, low, high) = _known(asked), _known(resource.bytes_per_s)
    used = Estimate(loads * want / has, loads * least / high, loads * most / low)
    if resource.name == SHARDS:  # it was made from what is asked for
        used = _exactly(used.median)
    if resource.per == RANK:
        return Use(resource, used, None)
    feeds = cluster.nodes * cluster.ranks_per_node if resource.per == NODE else cluster.ranks
    return Use(resource, used, Estimate(*(feeds / one for one in (used.median, *reversed(_ends(used))))))


def _loads(resource: Resource, cluster: Cluster) -> int:
    """How many ranks use one of it."""
    return {RANK: 1, NODE: cluster.ranks_per_node, ALL: cluster.ranks}[resource.per]


def _when(use: Use) -> tuple[bool, float]:
    """What sorts resources by when they are exhausted as ranks are added: first what one rank exhausts."""
    return not (use.until is None and use.used.median > 1), -use.used.median


def _spread(values: Sequence[float]) -> Estimate:
    """The median, and within which nearly all of the values lie."""
    low, high = (float(np.quantile(values, q)) for q in SPREAD)
    return Estimate(statistics.median(values), low, high)


def _exactly(value: float) -> Estimate:
    return Estimate(value, value, value)


def _known(estimate: Estimate) -> tuple[float, float, float]:
    """Median, low and high."""
    return (estimate.median, *_ends(estimate))


def _ends(estimate: Estimate) -> tuple[float, float]:
    low = estimate.median if estimate.low is None else estimate.low
    return low, estimate.median if estimate.high is None else estimate.high


def _assumptions(rounds: Sequence[Record], cluster: Cluster, step_bytes: float) -> Iterator[str]:
    case, machine = rounds[0].case, rounds[0].machine
    yield (
        f"every node is like {machine.host or 'the host that was measured'} ({machine.cpu}), and every rank "
        "loads as the one rank did"
    )
    if cluster.step_s:
        step = seconds_text(cluster.step_s)
        yield f"a rank asks for a batch of {bytes_text(step_bytes)} in every step of {step}, and reads ahead"
    else:
        yield "a rank asks for as much as its loader gave alone: state --step-ms for what training asks for"
    if cluster.shared:
        yield (
            "all data come over the network in every epoch, nothing is cached on a node, and what is read "
            "is what is stored"
        )
    else:
        yield f"every node has all data of its own, read with a {case.get('cache', 'warm')} cache"
    if cluster.shard_bytes is not None:
        yield "a shard is read by one rank at a time, by one worker where there are workers"
    yield (
        "ranks of a node share its processors, memory, disk and network evenly; the interval reaches from "
        "hosts that are all as slow as the slowest rounds to hosts that are all as fast as the fastest"
    )


def _warnings(rounds: Sequence[Record], cluster: Cluster, logical: float) -> Iterator[str]:
    machine, whole = rounds[0].machine, cluster.data_bytes or logical
    if rounds[0].case.get("cache") == "warm" and not cluster.shared and whole > machine.memory_bytes > 0:
        yield (
            f"it was measured with a warm cache, but {bytes_text(whole)} do not fit a node's "
            f"{bytes_text(machine.memory_bytes)} of memory: measure with --cache cold"
        )
    if len(rounds) < ENOUGH:
        made = counted(len(rounds), "round")
        yield f"{made} tell little of how far hosts differ: measure with --rounds {ENOUGH} or more"


def _numbers(estimate: Estimate) -> str:
    return _with_ends(estimate, lambda value: f"{math.floor(value * (1 + 1e-9)):,}")


def _percents(estimate: Estimate) -> str:
    return _with_ends(estimate, lambda value: f"{value:.0%}")


def _with_ends(estimate: Estimate, text: Callable[[float], str]) -> str:
    """A figure with its interval, where that is one."""
    middle, low, high = map(text, _known(estimate))
    return middle if low == high else f"{middle} ({low} to {high})"
