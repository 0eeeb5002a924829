"""A run over the ranks of a group: rank 0 decides, and tells the others what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from iobench.base.units import counted
from iobench.bench.case import Case
from iobench.bench.case_limits import TO_DEVICE, lowest
from iobench.bench.executor import Tick
from iobench.bench.options import RunOptions
from iobench.dataset.manifest import Manifest
from iobench.host.limits import Below
from iobench.ranks.group import Group
from iobench.ranks.rank import STOP, Rank, Wanted
from iobench.results.parts import CachePart, LimitPart, Measured, ProofPart


class RankCrew:
    """Rank 0 of a group as who carries out a run: see iobench.bench.crew.

    An executor and who looks after hosts as well: each is a word to all ranks, and what they answer.
    """

    def __init__(self, group: Group, remarks: Sequence[str] = ()) -> None:
        self._group, self._rank, self._remarks = group, Rank(group), list(remarks)
        self.world_size, self._looked = group.place.world_size, False

    def begin(self, manifest: Manifest, options: RunOptions, cases: Sequence[Case]) -> list[str]:
        """Tell all ranks what the run is, and see that they have the same data."""
        self._all("begin", Wanted(manifest.root.absolute(), manifest.content, options, tuple(cases)))
        return self._remarks

    def executor(self, case: Case) -> RankCrew:
        """All ranks together."""
        return self

    @property
    def hosts(self) -> RankCrew:
        """The first rank of each."""
        return self

    def prove(self, case: Case, warmup: int, tick: Tick) -> ProofPart | None:
        """Have all prove their shares; what was found is the same for all."""
        found: ProofPart | None = self._all("prove", case, warmup, tick=tick)[0]
        return found

    def ready(self, case: Case, tick: Tick) -> None:
        """All are since they proved it."""

    def measure(self, case: Case, number: int, tick: Tick) -> list[Measured]:
        """Have all time their shares at the same time."""
        return self._all("measure", case, number, tick=tick)

    def trace(self, case: Case, path: Path) -> None:
        """Have rank 0 write a trace."""
        self._all("trace", case, path)

    def end(self, case: Case) -> None:
        """Nothing is kept."""

    def establish(self, case: Case) -> CachePart:
        """Have each host's cache made warm or cold; the state of the host that is furthest from it."""
        each = dict(zip(self._group.places, self._all("establish", case), strict=True))
        found: list[CachePart] = [one for one in each.values() if one is not None]
        known = [one.residency for one in found if one.residency is not None]
        worst = max if case.cache == "cold" else min
        return replace(
            found[0],
            residency=worst(known) if len(known) == len(found) else None,
            method=_methods({place.host: one.method for place, one in each.items() if one is not None}),
        )

    def look_at_limits(self) -> None:
        """Have all hosts look at once; at first each by itself, too."""
        if not self._looked and len({place.node for place in self._group.places}) > 1:
            self._all("look_alone")
        self._looked = True
        self._all("look_at_limits")

    def limit(self, case: Case) -> LimitPart | None:
        """The lowest of what all hosts, or all ways to devices, can do at the same time."""
        return self._with_alone(case, _lowest(self._all("limit", case)))

    def limit_again(self, case: Case) -> LimitPart | None:
        """The same after a longer look."""
        return self._with_alone(case, _lowest(self._all("limit_again", case)))

    def _with_alone(self, case: Case, found: LimitPart | None) -> LimitPart | None:
        """With what the hosts gave one by one."""
        if found is None:
            return None
        every = [limit for each in self._all("limit_alone", case) for limit in each]
        alone = [limit.bytes_per_s for limit in every if limit.name == found.name]
        return replace(found, alone_bytes_per_s=sum(alone) if alone else None)

    def below(self) -> Below | None:
        """Whether a layer below the kernel of any host caches: of the host where that is plainest."""
        found: list[Below] = self._of_hosts("below")
        return max(found, key=lambda one: one.first_s / one.second_s, default=None)

    def close(self) -> None:
        """Nothing was started for the run."""

    def stop(self) -> None:
        """Tell the others that there is no more to do."""
        if self._group.alive:
            self._group.broadcast((STOP, ()))

    def _all(self, what: str, *arguments: Any, tick: Tick | None = None) -> list[Any]:
        """Say it to all ranks, and do it, too."""
        tick = tick or Tick()
        self._group.while_waiting(tick.check_interrupt)
        self._group.broadcast((what, arguments))

        def check() -> None:
            tick.check_interrupt()
            self._group.check()

        try:
            return self._rank.do(what, arguments, Tick(check, tick.progress))
        finally:
            tick.check_interrupt()  # others that were hurried have failed for that

    def _of_hosts(self, what: str, *arguments: Any) -> list[Any]:
        return [one for one in self._all(what, *arguments) if one is not None]


def _methods(by_host: Mapping[str, str]) -> str:
    """How the hosts did it, each by name where they did not all do the same."""
    ways = set(by_host.values())
    if len(ways) == 1:
        return ways.pop()
    return ", ".join(f"{method} on {host}" for host, method in by_host.items())


def _lowest(by_rank: Sequence[Sequence[LimitPart]]) -> LimitPart | None:
    """Of the limits that the first rank has, each added up over all that have it."""
    every = [limit for found in by_rank for limit in found]
    return lowest(_sum([one for one in every if one.name == first.name]) for first in by_rank[0])


def _sum(found: Sequence[LimitPart]) -> LimitPart:
    """The same limit of several hosts or devices, which were measured at once."""
    now = [one.now_bytes_per_s for one in found if one.now_bytes_per_s is not None]
    reads = [one.reads_per_s for one in found if one.reads_per_s is not None]
    what = "device" if found[0].name == TO_DEVICE else "host"
    how = found[0].how if len(found) == 1 else f"{found[0].how}, {counted(len(found), what)} at once"
    return replace(
        found[0],
        how=how,
        bytes_per_s=sum(one.bytes_per_s for one in found),
        now_bytes_per_s=sum(now) if len(now) == len(found) else None,
        reads_per_s=sum(reads) if len(reads) == len(found) else None,
    )
