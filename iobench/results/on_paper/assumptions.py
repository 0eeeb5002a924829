"""What a plan on paper takes for granted, and what to be warned of in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from iobench.base.units import bytes_text, counted, seconds_text
from iobench.results.on_paper.cluster import Cluster
from iobench.results.record import Record
from iobench.results.stats import ENOUGH


def assumptions_of(rounds: Sequence[Record], cluster: Cluster, step_bytes: float) -> Iterator[str]:
    """What is taken for granted, a sentence each; `step_bytes` are those of a batch."""
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


def warnings_of(rounds: Sequence[Record], cluster: Cluster, logical: float) -> Iterator[str]:
    """Why not to believe it; `logical` are the bytes of the data that were measured."""
    machine, whole = rounds[0].machine, cluster.data_bytes or logical
    if rounds[0].case.get("cache") == "warm" and not cluster.shared and whole > machine.memory_bytes > 0:
        yield (
            f"it was measured with a warm cache, but {bytes_text(whole)} do not fit a node's "
            f"{bytes_text(machine.memory_bytes)} of memory: measure with --cache cold"
        )
    if len(rounds) < ENOUGH:
        made = counted(len(rounds), "round")
        yield f"{made} tell little of how far hosts differ: measure with --rounds {ENOUGH} or more"
