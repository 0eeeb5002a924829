"""Assumptions of a capacity plan, and warnings about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from iobench.base.finding import Finding
from iobench.base.units import bytes_text, counted, seconds_text
from iobench.results.capacity.cluster import Cluster
from iobench.results.record import Record
from iobench.results.run_warning import RunWarning
from iobench.results.stats import ENOUGH_ROUNDS


def assumptions_of(rounds: Sequence[Record], cluster: Cluster, step_bytes: float) -> Iterator[Finding]:
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


def warnings_of(rounds: Sequence[Record], cluster: Cluster, logical: float) -> Iterator[RunWarning]:
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
