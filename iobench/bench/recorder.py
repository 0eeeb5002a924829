"""Assembly of records: the parts that only the run as a whole knows."""

from __future__ import annotations

import uuid
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, fields
from pathlib import Path

from iobench import formats
from iobench.base.machine import Machine
from iobench.base.text import utc_now
from iobench.bench.backend import RunBackend
from iobench.bench.case import Case
from iobench.bench.limits import lower_cache_note
from iobench.bench.outcome import Run
from iobench.bench.part import Proof
from iobench.bench.training import Headroom
from iobench.host import machine_info
from iobench.host.machine_load import Monitor
from iobench.results import record_file
from iobench.results.cases import trains
from iobench.results.parts import CachePart, DatasetPart, FieldSpec, LimitPart, Measured, Prices
from iobench.results.record import Record


class Recorder:
    """Builds the records of a run from measured rounds, the machine, the limits and the content checks."""

    def __init__(self, run: Run, backend: RunBackend) -> None:
        self._backend = backend
        self._run, self._id = run, run.records[0].run if run.records else uuid.uuid4().hex[:12]
        first = run.cases[0]
        self._prices = Prices.parse(run.options.prices) if run.options.prices else None
        self._headroom = Headroom(run.manifest) if run.options.headroom and run.manifest else None
        self._disks = {case.variant: _disk_of(run, case) for case in run.cases}
        self._monitor = Monitor(self._disks[first.variant], first.device) if run.options.profile else None
        libraries = {case.loader.library for case in run.cases}
        for variant in {case.variant for case in run.cases if case.variant}:
            libraries.update(formats.parse(variant).libraries)
        places = {(self._disks[case.variant], case.device) for case in run.cases}
        self._machines = {place: machine_info.describe(*place, libraries) for place in places}
        for case in run.cases:
            record_file.check_parts(machine=self.machine(case), dataset=self._dataset(case))
        self._lower_cache_p50_s: list[float] | None = None

    def watching(self) -> AbstractContextManager[None]:
        """Sample the machine once a second within the block, if the run is profiled."""
        return self._monitor.watching() if self._monitor else nullcontext()

    def probe_lower_cache(self) -> None:
        """Before cold rounds, probe for a cache below the kernel and note the result."""
        cold = any(case.cache == "cold" for case in self._run.cases)
        if cold and (probe := self._backend.lower_cache()) is not None:
            self._lower_cache_p50_s = [probe.first_s, probe.second_s]
            self._run.notes.append(lower_cache_note(probe))

    def measure_headroom(self, case: Case, number: int) -> float | None:
        """Return samples/s of the case's step over batches on the device, if the run measures headroom."""
        if self._headroom is None or case.world_size > 1 or not trains(case.facets):
            return None
        return self._headroom.rate(case, number)

    def machine(self, case: Case) -> Machine:
        """Return the machine with the disk and the device of a case."""
        return self._machines[self._disks[case.variant], case.device]

    def record(
        self, case: Case, number: int, measured: Measured, cache: CachePart, headroom: float | None = None
    ) -> Record:
        """Return the record of a round that has just ended."""
        cold = {"lower_cache_p50_s": self._lower_cache_p50_s} if case.cache == "cold" else {}
        proof, plan = self._run.proofs.get(case.key), None
        if not self._run.records and self._run.manifest is not None:  # a live run cannot be resumed
            options = record_file.plain(self._run.options)
            plan = {"run": options, "cases": [one.key for one in self._run.cases]}
        return Record(
            run=self._id,
            time=utc_now("milliseconds"),
            round=number,
            case=case.facets,
            dataset=self._dataset(case),
            cache=CachePart(**{**asdict(cache), **cold}),
            machine=self.machine(case),
            limit=self._limit(case, measured),
            shuffle_quality=self._shuffle_quality(case, proof),
            content_check=proof.check if proof else None,
            prices=self._prices,
            headroom_samples_per_s=headroom,
            plan=plan,
            snapshots=self._monitor.take() if self._monitor else None,
            **{part.name: getattr(measured, part.name) for part in fields(Measured)},
        )

    def _limit(self, case: Case, measured: Measured) -> LimitPart | None:
        limit = self._backend.limit(case)
        rate = measured.timing.logical_bytes / measured.timing.epochs_s
        if limit and rate > limit.bytes_per_s:
            return self._backend.remeasure_limit(case)  # a limit that was exceeded was measured too low
        return limit

    def _dataset(self, case: Case) -> DatasetPart:
        manifest = self._run.manifest
        if manifest is None:
            assert self._run.live is not None
            return self._run.live
        artifact = None if case.loader.own_data else manifest.artifacts[case.variant]
        added = manifest.added.get(case.variant)
        part = added is not None and added.samples is not None  # of the files, which hold more samples
        totals = manifest.schema.totals
        return DatasetPart(
            name=manifest.name,
            samples=manifest.schema.samples,
            fields=[
                FieldSpec(name=f.name, shape=list(f.shape), dtype=f.dtype, total=totals.get(f.name))
                for f in manifest.schema.fields
            ],
            source=record_file.plain(manifest.source),
            content=case.content,
            stored_bytes=artifact.stored_bytes if artifact and not part else None,
            write_s=artifact.write_s if artifact and not artifact.external else None,
        )

    def _shuffle_quality(self, case: Case, proof: Proof | None) -> float | None:
        if case.loader.iterable_style:
            return proof.check.shuffle_quality if proof and proof.check else None
        if case.order != "block" or self._run.manifest is None:
            return None
        schema = self._run.manifest.schema
        return case.row_order(schema).shuffle_quality(schema.samples)


def _disk_of(run: Run, case: Case) -> Path:
    """Return a path on the disk that the case reads; added data may lie on another disk than the dataset."""
    if run.manifest is None:
        return Path.cwd()
    path = run.manifest.path_of(case.variant)
    external = case.variant in run.manifest.added and path.exists()  # if it is gone, the case fails
    return path if external else run.manifest.root
