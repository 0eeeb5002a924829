"""From what was measured to a record: the parts that only the run as a whole knows."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

from iobench import formats
from iobench.bench.case import Case
from iobench.bench.headroom import Headroom
from iobench.bench.hosts import Hosts
from iobench.bench.outcome import Run
from iobench.bench.resume import plan_of_run
from iobench.host import machine
from iobench.host.monitor import Monitor
from iobench.loading.order import shuffledness
from iobench.results import history, record
from iobench.results.cases import trains
from iobench.results.parts import (
    CachePart,
    DatasetPart,
    FieldSpec,
    LimitPart,
    MachineDisk,
    MachineGpu,
    MachinePart,
    Measured,
    ProofPart,
    SnapshotPart,
)
from iobench.results.record import Record


class Recorder:
    """What a run knows beside its rounds: the machine, the limits, the state of the cache below."""

    def __init__(self, run: Run, hosts: Hosts) -> None:
        self._hosts = hosts
        self._run, self._id = run, run.records[0].run if run.records else uuid.uuid4().hex[:12]
        first = run.cases[0]
        self._headroom = Headroom(run.manifest) if run.options.headroom else None
        self._disks = {case.variant: _disk_of(run, case) for case in run.cases}
        self._monitor = Monitor(self._disks[first.variant], first.device) if run.options.profile else None
        libraries = _libraries(run.cases)
        places = {(self._disks[case.variant], case.device) for case in run.cases}
        self._machines = {place: machine_part(*place, libraries) for place in places}
        self._below_s: list[float] | None = None
        self._proofs: dict[str, ProofPart | None] = {}

    def watching(self) -> AbstractContextManager[None]:
        """Look at the machine once a second meanwhile, if the run asks for it."""
        return self._monitor.watching() if self._monitor else nullcontext()

    def trace_path(self, label: str) -> Path:
        """Where the trace of a case goes: a folder beside the run's records, one file for each."""
        name = re.sub(r"[^A-Za-z0-9=]+", "-", label).strip("-")
        return history.traces_folder(self._run.path) / f"{name}.json"

    def probe_below(self) -> None:
        """Before cold rounds, find out whether a layer below this kernel caches, and say so."""
        if any(case.cache == "cold" for case in self._run.cases):
            below = self._hosts.below()
            if below is not None:
                self._below_s = [below.first_s, below.second_s]
                self._run.remarks.append(below.sentence)

    def look_at_headroom(self, case: Case, number: int) -> float | None:
        """Samples/s of the case's training step over batches that are on the device, if that is wanted."""
        if self._headroom is None or case.world_size > 1 or not trains(case.facets):
            return None
        return self._headroom.look(case, number)

    def machine(self, case: Case) -> MachinePart:
        """The machine with the disk and the device of a case."""
        return self._machines[self._disks[case.variant], case.device]

    def proved(self, case: Case, found: ProofPart | None) -> None:
        """Keep what the proof of a case found, for its records."""
        self._proofs[case.key] = found

    def record(
        self,
        case: Case,
        number: int,
        measured: Measured,
        cache: CachePart,
        headroom: float | None = None,
    ) -> Record:
        """The record of a round that has just ended."""
        cold = {"below_s": self._below_s} if case.cache == "cold" else {}
        return Record(
            run=self._id,
            time=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            round=number,
            case=case.facets,
            dataset=self._dataset(case),
            cache=CachePart(**{**asdict(cache), **cold}),
            machine=self.machine(case),
            limit=self._limit(case, measured),
            shuffledness=self._shuffledness(case),
            proof=self._proofs.get(case.key),
            headroom_samples_per_s=headroom,
            plan=None if self._run.records else plan_of_run(self._run.options, self._run.cases),
            snapshots=cast("list[SnapshotPart]", self._monitor.take()) if self._monitor else None,
            **{part.name: getattr(measured, part.name) for part in fields(Measured)},
        )

    def _limit(self, case: Case, measured: Measured) -> LimitPart | None:
        """The lowest limit on the case's way; None where none is to be, or can be, measured."""
        limit = self._hosts.limit(case)
        rate = measured.timing.logical_bytes / measured.timing.epochs_s
        if limit and rate > limit.bytes_per_s:
            return self._hosts.limit_again(case)  # what was beaten is no limit
        return limit

    def _dataset(self, case: Case) -> DatasetPart:
        manifest = self._run.manifest
        artifact = None if case.loader.own_data else manifest.artifacts[case.variant]
        return DatasetPart(
            name=manifest.name,
            samples=manifest.schema.samples,
            fields=[
                FieldSpec(name=f.name, shape=list(f.shape), dtype=f.dtype) for f in manifest.schema.fields
            ],
            source=record.plain(manifest.source),
            content=case.content,
            stored_bytes=artifact.stored_bytes if artifact else None,
            write_s=artifact.write_s if artifact and not artifact.added else None,
        )

    def _shuffledness(self, case: Case) -> float | None:
        if case.loader.own_order:
            proof = self._proofs.get(case.key)
            return proof.shuffledness if proof else None
        if case.order != "block":
            return None
        samples = self._run.manifest.schema.samples
        order = case.row_order(self._run.manifest.schema)
        batches = order.batches(samples, 1)
        return shuffledness(batches[:: max(1, len(batches) // 100)], order.block_rows, samples)


def _disk_of(run: Run, case: Case) -> Path:
    """A path on the disk that the case reads: what was added may lie on another than the dataset."""
    path = run.manifest.path_of(case.variant)
    there = case.variant in run.manifest.added and path.exists()  # if not, that case fails
    return path if there else run.manifest.root


def _libraries(cases: Iterable[Case]) -> set[str]:
    """The packages of the formats and loaders that are measured."""
    found = {case.loader.library for case in cases}
    return found.union(*(formats.parse(variant).libraries for variant in {case.variant for case in cases}))


def machine_part(disk: Path, device: str, libraries: Iterable[str] = ()) -> MachinePart:
    """The machine with the disk under a path and a device, and the versions of these packages."""
    described = machine.describe(disk, device, libraries)
    gpu: dict[str, Any] | None = described.pop("gpu")
    named = {spec.name for spec in fields(MachineGpu)}
    return MachinePart(
        **{
            **described,
            "disk": MachineDisk(**described["disk"]),
            "gpu": gpu
            and MachineGpu(
                **{name: value for name, value in gpu.items() if name in named},
                details={name: value for name, value in gpu.items() if name not in named},
            ),
        }
    )
