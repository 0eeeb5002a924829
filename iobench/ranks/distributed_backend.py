"""Backend of a run over several ranks: rank 0 decides, and sends commands to the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from iobench.base.finding import Finding
from iobench.base.units import counted
from iobench.bench.backend import RunBackend
from iobench.bench.case import Case
from iobench.bench.executor import Executor, Tick
from iobench.bench.limits import TO_DEVICE, lowest
from iobench.bench.options import RunOptions
from iobench.bench.part import Proof
from iobench.dataset.manifest import Manifest
from iobench.host.hardware_limits import LowerCacheProbe
from iobench.ranks.group import RankGroup
from iobench.ranks.rank import STOP, Rank, RunRequest
from iobench.results.parts import CachePart, LimitPart, Measured


class DistributedBackend(Executor, RunBackend):
    """Backend and executor of a run over several ranks.

    Lives on rank 0. Each method is a command that all ranks execute, rank 0 included.
    """

    def __init__(self, group: RankGroup, notes: Sequence[Finding] = ()) -> None:
        self._group, self._rank, self._notes = group, Rank(group), list(notes)
        self.world_size, self._sampled = group.info.world_size, False

    def begin(self, manifest: Manifest, options: RunOptions, cases: Sequence[Case]) -> list[Finding]:
        """Send the run to all ranks, and check that they have the same data."""
        self._all("begin", RunRequest(manifest.root.absolute(), manifest.content, options, tuple(cases)))
        return self._notes

    def executor(self, case: Case) -> DistributedBackend:
        """Return this object: all ranks together."""
        return self

    def prove(self, case: Case, warmup: int, tick: Tick, limit_s: float = math.inf) -> Proof:
        """Verify the shares of all ranks; the check is the same on all, the times are the slowest rank's."""
        proofs: list[Proof] = self._all("prove", case, warmup, limit_s, tick=tick)
        return max(proofs, key=lambda proof: proof.sample_s)

    def measure(
        self, case: Case, number: int, tick: Tick, batches: int | None = None, limit_s: float = math.inf
    ) -> list[Measured]:
        """Time the shares of all ranks at the same time."""
        return self._all("measure", case, number, batches, limit_s, tick=tick)

    def trace(self, case: Case, path: Path) -> None:
        """Write a trace on rank 0."""
        self._all("trace", case, path)

    def establish(self, case: Case, logical_bytes: int) -> CachePart:
        """Warm or evict the page cache of each host; returns the state of the worst host."""
        parts = dict(zip(self._group.ranks, self._all("establish", case, logical_bytes), strict=True))
        leaders: list[CachePart] = [one for one in parts.values() if one is not None]
        known = [one.residency for one in leaders if one.residency is not None]
        worst = max if case.cache == "cold" else min
        return replace(
            leaders[0],
            residency=worst(known) if len(known) == len(leaders) else None,
            method=_methods({rank.host: one.method for rank, one in parts.items() if one is not None}),
        )

    def sample_limits(self) -> None:
        """Sample the limits of all hosts at once; the first time also of each host separately."""
        if not self._sampled and len({rank.node for rank in self._group.ranks}) > 1:
            self._all("sample_separately")
        self._sampled = True
        self._all("sample_limits")

    def limit(self, case: Case) -> LimitPart | None:
        """Return the lowest of what all hosts, or all links to devices, can do at the same time."""
        return self._with_separate(case, lowest_over_ranks(self._all("limit", case)))

    def remeasure_limit(self, case: Case) -> LimitPart | None:
        """Return the same after a longer measurement."""
        return self._with_separate(case, lowest_over_ranks(self._all("remeasure_limit", case)))

    def _with_separate(self, case: Case, limit: LimitPart | None) -> LimitPart | None:
        """Add the sum of what the hosts gave one by one."""
        if limit is None:
            return None
        every = [one for host in self._all("separate_limits", case) for one in host]
        alone = [one.bytes_per_s for one in every if one.name == limit.name]
        return replace(limit, alone_bytes_per_s=sum(alone) if alone else None)

    def lower_cache(self) -> LowerCacheProbe | None:
        """Probe for a cache below the kernel of each host; returns the host where it is plainest."""
        probes: list[LowerCacheProbe] = [one for one in self._all("lower_cache") if one is not None]
        return max(probes, key=lambda one: one.first_s / one.second_s, default=None)

    def stop(self) -> None:
        """End the worker loops of the other ranks, and remove the object caches of all hosts."""
        if self._group.alive:
            self._group.broadcast((STOP, ()))
        self._rank.close()

    def _all(self, command: str, *arguments: Any, tick: Tick | None = None) -> list[Any]:
        """Send a command to all ranks and execute it here as well; returns the results by rank."""
        tick = tick or Tick()
        self._group.poll_while_waiting(tick.check_interrupt)
        self._group.broadcast((command, arguments))

        def check() -> None:
            tick.check_interrupt()
            self._group.check()

        try:
            return self._rank.execute(command, arguments, Tick(check, tick.progress))
        finally:
            tick.check_interrupt()  # after Ctrl-C the ranks fail with it; report the interrupt instead


def _methods(by_host: Mapping[str, str]) -> str:
    """Return the hosts' method, or each host's if they differ."""
    methods = set(by_host.values())
    if len(methods) == 1:
        return methods.pop()
    return ", ".join(f"{method} on {host}" for host, method in by_host.items())


def lowest_over_ranks(by_rank: Sequence[Sequence[LimitPart]]) -> LimitPart | None:
    """Return the lowest of the first rank's limits, each summed over all ranks that have it."""
    every = [limit for limits in by_rank for limit in limits]
    return lowest(_sum([one for one in every if one.name == first.name]) for first in by_rank[0])


def _sum(limits: Sequence[LimitPart]) -> LimitPart:
    """Add up the same limit of several hosts or devices, measured at the same time."""
    first = limits[0]
    now = [one.now_bytes_per_s for one in limits if one.now_bytes_per_s is not None]
    reads = [one.reads_per_s for one in limits if one.reads_per_s is not None]
    what = "device" if first.name == TO_DEVICE else "host"
    how = first.how if len(limits) == 1 else f"{first.how}, {counted(len(limits), what)} at once"
    return replace(
        first,
        how=how,
        bytes_per_s=sum(one.bytes_per_s for one in limits),
        now_bytes_per_s=sum(now) if len(now) == len(limits) else None,
        reads_per_s=sum(reads) if len(reads) == len(limits) else None,
    )
