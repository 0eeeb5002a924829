"""Commands of a distributed run, as every rank executes them over its own share, after a preflight check."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from iobench.base import errors
from iobench.base.errors import IobenchError, RanksDiffer
from iobench.base.finding import Finding
from iobench.bench.backend import RunBackend
from iobench.bench.case import Case
from iobench.bench.executor import InProcess, Tick
from iobench.bench.limits import TO_DEVICE, CaseLimits
from iobench.bench.options import RunOptions
from iobench.bench.part import Proof
from iobench.dataset.manifest import Manifest
from iobench.host import machine_load
from iobench.host.device import own_device
from iobench.host.hardware_limits import LowerCacheProbe
from iobench.ranks.group import Collectives, RankGroup, run_on_all_ranks
from iobench.results.parts import CachePart, LimitPart, Measured, RankPart

# without a batch while other ranks wait: seconds, or this many times the duration of the verification
PATIENCE_S, PATIENCE_FACTOR = 60.0, 10
STOP = "stop"


@dataclass(frozen=True)
class RunRequest:
    """A run as rank 0 sends it to every rank: the dataset's folder and content, options, and cases."""

    root: Path  # absolute: ranks of other hosts may have been started in another folder
    content: int | None
    options: RunOptions
    cases: tuple[Case, ...]


class Rank:
    """One rank of a run; its public methods are the commands that rank 0 sends to all ranks."""

    def __init__(self, group: RankGroup) -> None:
        self._group, self._info, self._collectives = group, group.info, Collectives(group)
        self._proof_s: dict[str, float] = {}
        self._request: RunRequest | None = None
        self._separate: CaseLimits | None = None

    def execute(self, command: str, arguments: tuple[Any, ...], tick: Tick) -> list[Any]:
        """Execute a command together with all ranks; returns and raises as `run_on_all_ranks`."""
        timed = command in ("prove", "measure")
        group = self._group
        group.report_progress(tick.progress)
        group.patience_s = self._patience_s(arguments[0].key) if timed else None
        try:
            return run_on_all_ranks(
                group, lambda: getattr(self, command)(*arguments, *([tick] if timed else []))
            )
        finally:
            group.patience_s = None

    def begin(self, request: RunRequest) -> None:
        """Open the dataset, or this host's copy of it; raises RanksDiffer if it is another one."""
        try:
            manifest = Manifest.load(request.root)
            for variant in {case.variant for case in request.cases}:
                manifest.opener(variant)
        except IobenchError as error:
            differs: dict[str, Any] = {
                **error.fields(),
                "kind": "no-dataset",
                "hint": "every host needs the dataset at the same path",
            }
            raise RanksDiffer(**differs) from error
        if manifest.content != request.content:
            raise RanksDiffer(
                "the dataset of this host holds other data than that of rank 0",
                kind="other-content",
                path=request.root.absolute(),
                expected=f"content {request.content or 0:016x}",
                found=f"{manifest.content or 0:016x}",
                hint="copy it from rank 0's host, or prepare it as it was there",
            )
        self._request, self._manifest, self._separate = request, manifest, None
        self._executor = InProcess(manifest, self._collectives)
        self._host = RunBackend(self._info.leads_host)
        self._host.begin(manifest, request.options, self._own_cases)

    def prove(self, case: Case, warmup: int, limit_s: float, tick: Tick) -> Proof:
        """Verify this rank's share as part of the sum over all ranks, and warm it up."""
        began = time.monotonic()
        result = self._executor.prove(self._own(case), warmup, tick, limit_s)
        self._proof_s[case.key] = (time.monotonic() - began) / warmup
        return result

    def measure(self, case: Case, number: int, batches: int | None, limit_s: float, tick: Tick) -> Measured:
        """Time this rank's share, from the moment at which all ranks begin."""
        own = self._own(case)
        (measured,) = self._executor.measure(own, number, tick, batches, limit_s)
        return replace(measured, ranks=[self._part(own.device, measured)])

    def trace(self, case: Case, path: Path) -> None:
        """Write a trace, on rank 0 only."""
        if self._info.rank == 0:
            self._executor.trace(self._own(case), path)

    def establish(self, case: Case, logical_bytes: int) -> CachePart | None:
        """Warm or evict this host's page cache; None if another rank of the host does that."""
        return self._host.establish(case, logical_bytes) if self._info.leads_host else None

    def sample_separately(self) -> None:
        """Sample the limits of one host after the other, to reveal shared resources by comparison."""
        for node in sorted({rank.node for rank in self._group.ranks}):
            if self._info.leads_host and self._info.node == node and self._host.limits:
                self._separate = CaseLimits(self._manifest, self._own_cases)
                self._separate.sample(devices=False)
            self._collectives.all_gather(None)

    def separate_limits(self, case: Case) -> list[LimitPart]:
        """Return the limits of this host, measured while the other hosts waited."""
        return self._separate.all_for(self._own(case)) if self._separate else []

    def sample_limits(self) -> None:
        """Sample the limits of all hosts at the same time, and then of the links to all devices."""
        if limits := self._host.limits:
            if self._info.leads_host:
                limits.sample(devices=False)
            self._collectives.all_gather(None)
            limits.sample(devices=True)

    def limit(self, case: Case) -> list[LimitPart]:
        """Return every limit on this rank's path that it does not share with its host's first rank."""
        if self._host.limits is None:
            return []
        limits = self._host.limits.all_for(self._own(case))
        return [one for one in limits if self._info.leads_host or one.name == TO_DEVICE]

    def remeasure_limit(self, case: Case) -> list[LimitPart]:
        """Return the same after a longer measurement."""
        if limits := self._host.limits:
            if self._info.leads_host:
                limits.remeasure(self._own(case), devices=False)
            self._collectives.all_gather(None)
            limits.remeasure(self._own(case), devices=True)
        return self.limit(case)

    def lower_cache(self) -> LowerCacheProbe | None:
        """Probe for a cache below this host's kernel."""
        return self._host.lower_cache() if self._info.leads_host else None

    def close(self) -> None:
        """Remove this host's object caches, if a run has begun."""
        if self._request is not None:
            self._host.close()

    @property
    def _own_cases(self) -> list[Case]:
        return [self._own(case) for case in self._request.cases] if self._request else []

    def _own(self, case: Case) -> Case:
        """Return the case on this rank's device."""
        return replace(case, device=own_device(case.device, self._info.local_rank))

    def _patience_s(self, key: str) -> float:
        """Return how long the others wait for a batch of this rank; verification may read all files first."""
        if key in self._proof_s:
            return max(PATIENCE_S, PATIENCE_FACTOR * self._proof_s[key])
        return max(PATIENCE_S, self._request.options.timeout if self._request else 0.0)

    def _part(self, device: str, measured: Measured) -> RankPart:
        info, timing = self._info, measured.timing
        return RankPart(
            rank=info.rank,
            local_rank=info.local_rank,
            node=info.node,
            host=info.host,
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


def worker_loop(group: RankGroup) -> None:
    """Execute the commands of rank 0 until it sends STOP; raises RankLost if it is gone."""
    rank = Rank(group)
    while True:
        command, arguments = group.broadcast(("", ()))
        if command == STOP:
            rank.close()
            return
        try:
            rank.execute(command, arguments, Tick(group.check))
        except IobenchError:  # rank 0 has it as well, and decides what follows
            if not group.alive:
                raise


CLOCKS_S = 1.0  # greatest difference between clocks that is not noted


def check_environments(group: RankGroup) -> list[Finding]:
    """Compare the software and clocks of all ranks, and return a note (`clock-skew`) if clocks differ.

    From now on the ranks of this host do not count as background load.

    RanksDiffer on every rank if one has other software than rank 0.
    """
    own = {"software": software(), "process": os.getpid(), "clock": time.time()}
    environments: list[dict[str, Any]] = group.all_gather(own)  # plain values, which any version can read
    for rank, environment in zip(group.ranks, environments, strict=True):
        for name, value in environment["software"].items():
            if (first := environments[0]["software"].get(name)) != value:
                raise RanksDiffer(
                    f"{rank} has another version of {name}",
                    kind="other-software",
                    expected=f"{first} as on {group.ranks[0]}",
                    found=value,
                    hint="install the same everywhere",
                )
    here = (group.info.node, group.info.host)
    pairs = list(zip(group.ranks, environments, strict=True))
    machine_load.exclude_processes(
        environment["process"] for rank, environment in pairs if (rank.node, rank.host) == here
    )
    first_clock = environments[0]["clock"]
    skew_s, worst = max((abs(environment["clock"] - first_clock), str(rank)) for rank, environment in pairs)
    if skew_s < CLOCKS_S:
        return []
    return [
        Finding(
            "clock-skew",
            f"the clock of {worst} differs by {skew_s:.0f} s from that of rank 0, or it started late; this "
            "affects times in records, but no figure",
            "synchronize the clocks of all hosts",
            {"rank": worst, "skew_s": skew_s},
        )
    ]


def software() -> dict[str, str]:
    """Return the versions that figures depend on, and a digest of iobench: checkouts of a version differ."""
    versions = {name: metadata.version(name) for name in ("iobench", "torch", "numpy")}
    code, root = hashlib.sha256(), Path(errors.__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        code.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return {**versions, "iobench's code": code.hexdigest()[:12], "Python": platform.python_version()}
