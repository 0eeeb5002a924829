"""What one rank of several does when it is told to: the same on every rank, each for its own share."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from iobench.base.errors import (
    IobenchError,
    RanksDiffer,
)
from iobench.bench.case import Case
from iobench.bench.case_limits import TO_DEVICE, CaseLimits
from iobench.bench.executor import InProcess, Tick
from iobench.bench.hosts import OneHost
from iobench.bench.options import RunOptions
from iobench.dataset.manifest import Manifest
from iobench.host.device import own_device
from iobench.host.limits import Below
from iobench.ranks.group import Group
from iobench.ranks.together import Together, all_do
from iobench.results.parts import CachePart, LimitPart, Measured, ProofPart, RankPart

PATIENCE_S, PATIENCE = 60.0, 10  # seconds, and times what a proof took: without a batch while others wait
STOP = "stop"


@dataclass(frozen=True)
class Wanted:
    """A run as every rank gets to know it: the dataset's folder, what is in it, and the cases."""

    root: Path  # absolute: ranks of other hosts may have been started in another folder
    content: int | None
    options: RunOptions
    cases: tuple[Case, ...]


class Rank:
    """One rank of a run: what rank 0 tells all of them, itself too, to do."""

    def __init__(self, group: Group) -> None:
        self._group, self._place, self._peers = group, group.place, Together(group)
        self._proof_s: dict[str, float] = {}
        self._wanted: Wanted | None = None
        self._alone: CaseLimits | None = None

    def do(self, what: str, arguments: tuple[Any, ...], tick: Tick) -> list[Any]:
        """Do it, as all ranks do now; what each of them found, by rank. Errors as in `all_do`."""
        timed = what in ("prove", "measure")
        group = self._group
        group.show(tick.progress)
        group.patience_s = self._patience_s(arguments[0].key) if timed else None
        try:
            return all_do(group, lambda: getattr(self, what)(*arguments, *([tick] if timed else [])))
        finally:
            group.patience_s = None

    def begin(self, wanted: Wanted) -> None:
        """Find the dataset where rank 0 has it, or this host's copy; RanksDiffer where it is another one."""
        try:
            manifest = Manifest.load(wanted.root)
            for variant in {case.variant for case in wanted.cases}:
                manifest.opener(variant)
        except IobenchError as error:
            raise RanksDiffer(f"{error}; every host needs the dataset at the same path") from error
        if manifest.content != wanted.content:
            raise RanksDiffer(
                f"{wanted.root.absolute()} holds data {manifest.content or 0:016x}, on rank 0 it holds "
                f"{wanted.content or 0:016x}; copy it from there, or prepare it as it was there"
            )
        self._wanted, self._manifest, self._alone = wanted, manifest, None
        self._executor, self._host = InProcess(manifest, self._peers), self._new_host()

    def prove(self, case: Case, warmup: int, tick: Tick) -> ProofPart | None:
        """Prove this rank's share as part of the sum of all, and warm it up."""
        began = time.monotonic()
        found = self._executor.prove(self._own(case), warmup, tick)
        self._proof_s[case.key] = (time.monotonic() - began) / warmup
        return found

    def measure(self, case: Case, number: int, tick: Tick) -> Measured:
        """Time this rank's share, from the moment at which all begin."""
        own = self._own(case)
        (measured,) = self._executor.measure(own, number, tick)
        return replace(measured, ranks=[self._part(own.device, measured)])

    def trace(self, case: Case, path: Path) -> None:
        """Write a trace, on rank 0 alone."""
        if self._place.rank == 0:
            self._executor.trace(self._own(case), path)

    def establish(self, case: Case) -> CachePart | None:
        """Make this host's cache warm or cold; None where another rank of the host does that."""
        return self._host.establish(case) if self._place.leads_host else None

    def look_alone(self) -> None:
        """Look at the limits of each host while the others wait: what they share shows against that."""
        for node in sorted({place.node for place in self._group.places}):
            if self._place.leads_host and self._place.node == node and self._host.limits:
                self._alone = self._new_host().limits
                if self._alone:
                    self._alone.look(devices=False)
            self._peers.gathered(None)

    def limit_alone(self, case: Case) -> list[LimitPart]:
        """What this host gave while the others waited."""
        return self._alone.each(self._own(case)) if self._alone else []

    def look_at_limits(self) -> None:
        """Look at this host's limits, all hosts at the same time, and then at the ways to all devices."""
        if limits := self._host.limits:
            if self._place.leads_host:
                limits.look(devices=False)
            self._peers.gathered(None)
            limits.look(devices=True)

    def limit(self, case: Case) -> list[LimitPart]:
        """Every limit on this rank's way that it does not share with the first rank of its host."""
        if self._host.limits is None:
            return []
        found = self._host.limits.each(self._own(case))
        return [one for one in found if self._place.leads_host or one.name == TO_DEVICE]

    def limit_again(self, case: Case) -> list[LimitPart]:
        """The same after a longer look, as before."""
        if limits := self._host.limits:
            if self._place.leads_host:
                limits.again(self._own(case), devices=False)
            self._peers.gathered(None)
            limits.again(self._own(case), devices=True)
        return self.limit(case)

    def below(self) -> Below | None:
        """Whether a layer below this host's kernel caches."""
        return self._host.below() if self._place.leads_host else None

    def _new_host(self) -> OneHost:
        assert self._wanted is not None
        options, own = self._wanted.options, [self._own(case) for case in self._wanted.cases]
        return OneHost(self._manifest, own, options.sudo, options.limits)

    def _own(self, case: Case) -> Case:
        """The case on this rank's device."""
        return replace(case, device=own_device(case.device, self._place.local_rank))

    def _patience_s(self, key: str) -> float:
        """How long the others wait for a batch of this rank; a proof may have to read all files first."""
        if key in self._proof_s:
            return max(PATIENCE_S, PATIENCE * self._proof_s[key])
        return max(PATIENCE_S, self._wanted.options.timeout if self._wanted else 0.0)

    def _part(self, device: str, measured: Measured) -> RankPart:
        place, timing = self._place, measured.timing
        return RankPart(
            rank=place.rank,
            local_rank=place.local_rank,
            node=place.node,
            host=place.host,
            device=device,
            threads=torch.get_num_threads(),
            samples=timing.samples,
            logical_bytes=timing.logical_bytes,
            own_s=timing.epochs_s if timing.own_s is None else timing.own_s,
            wait_s=timing.wait_s,
            open_s=timing.open_s,
            first_batch_s=timing.first_batch_s,
            cpu_s=measured.processor.cpu_s,
            disk_bytes=measured.disk.read_bytes,
            memory_bytes=measured.memory.peak_bytes,
        )


def obey(group: Group) -> None:
    """Do what rank 0 says, until it says that there is no more; RankLost where it has gone."""
    rank = Rank(group)
    while True:
        what, arguments = group.broadcast(("", ()))
        if what == STOP:
            return
        try:
            rank.do(what, arguments, Tick(group.check))
        except IobenchError:  # rank 0 has heard of it, and decides what follows
            if not group.alive:
                raise
