"""Whoever proves and measures cases, one at a time, when the run says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from iobench.base import thresholds
from iobench.bench import trace
from iobench.bench.case import Case
from iobench.bench.epoch import Round, asked_of, measure
from iobench.bench.foreign_proof import ForeignProof
from iobench.bench.observer import Progress
from iobench.bench.peers import Nobody, Peers
from iobench.bench.proof import Proof
from iobench.bench.training import Busy, Trainer
from iobench.dataset.manifest import Manifest
from iobench.dataset.verify import verify_artifact
from iobench.formats import Schema
from iobench.host.device import pick_device
from iobench.loading.stages import Profile
from iobench.loading.transfer import DeviceBatch, HostToDevice
from iobench.results.parts import Measured, ProofPart


class TookTooLong(Exception):
    """A case is given up in the middle of what it does, since others need the time, too."""


@dataclass
class Tick:
    """What happens beside each batch: an interrupt is taken, and whoever watches is told."""

    check_interrupt: Callable[[], None] = lambda: None
    progress: Progress = field(default_factory=Progress)

    def __call__(self) -> None:
        """Note a batch; KeyboardInterrupt where Ctrl-C has come."""
        self.check_interrupt()
        self.progress.batches += 1


class Executor(Protocol):
    """Runs cases; what is wrong with one is a IobenchError or a IobenchError."""

    def prove(self, case: Case, warmup: int, tick: Tick) -> ProofPart | None:
        """Run a case once, every sample hashed on the device, and then the other warm-up rounds.

        What was found of an order of its own, or of somebody's own loader; None where all came as told.
        """

    def ready(self, case: Case, tick: Tick) -> None:
        """Have a case that was proved ready for a round, before its cache is made warm or cold."""

    def measure(self, case: Case, number: int, tick: Tick) -> list[Measured]:
        """Time round `number` of a case; one result for each rank."""

    def end(self, case: Case) -> None:
        """Let go of what was kept for a case; it may be asked for again."""

    def trace(self, case: Case, path: Path) -> None:
        """Write what torch.profiler sees of a case's first batches."""

    def close(self) -> None:
        """End whatever was started."""


class InProcess:
    """In this process, which may be one of several ranks."""

    def __init__(self, manifest: Manifest, peers: Peers | None = None) -> None:
        self._manifest, self._peers = manifest, peers or Nobody()

    def prove(self, case: Case, warmup: int, tick: Tick) -> ProofPart | None:
        """Prove it, and warm it up; WrongContent where other than the dataset reached the device."""
        if self._manifest.unchanged(case.variant):
            self._manifest.opener(case.variant).check()  # a library may abort on damaged pages
        else:
            verify_artifact(self._manifest, case.variant)
        job = case.job(self._manifest, rank=self._peers.rank)
        proof = (
            ForeignProof(case, self._manifest)
            if case.loader.foreign
            else Proof(case.loader, job, self._manifest, asked_of(case.loader, job, 0), self._peers)
        )
        step = Step.of(case, self._manifest.schema)

        def consume(batch: DeviceBatch) -> None:
            step.transfer.lag()  # memory that is used again too soon shows only where the consumer is late
            proof.add(batch)

        self._run(case, Round(0, consume, seconds=0.0), tick, step)
        found = proof.conclude()
        for _ in range(warmup - 1):
            self.warm_up(case, tick)
        return found

    def warm_up(self, case: Case, tick: Tick) -> None:
        """Run an epoch that nobody times, after which libraries are loaded and memory is touched."""
        self._run(case, Round(0, lambda batch: None, seconds=0.0), tick)

    def ready(self, case: Case, tick: Tick) -> None:
        """It is since it was proved."""

    def measure(self, case: Case, number: int, tick: Tick) -> list[Measured]:
        """Time it: as many epochs as fill the round, or one from a cold disk."""
        profile = Profile() if case.profile else None
        seconds = 0.0 if case.cache == "cold" else thresholds.ROUND_S
        return [self._run(case, Round(number, lambda batch: None, seconds, profile), tick)]

    def trace(self, case: Case, path: Path) -> None:
        """Write it as a Chrome trace."""
        step = Step.of(case, self._manifest.schema)
        trace.write(path, case.loader, case.job(self._manifest), step.transfer, step)

    def end(self, case: Case) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing was started."""

    def _run(self, case: Case, wanted: Round, tick: Tick, step: Step | None = None) -> Measured:
        """A round with the case's training step on each batch, on a device that no other case fills."""
        step, first = step or Step.of(case, self._manifest.schema), wanted.consume
        work = wanted.profile.timed("compute", step) if wanted.profile and step.trains else step

        def consume(batch: DeviceBatch) -> None:
            tick()
            first(batch)
            work(batch)

        step.transfer.make_room()
        measured = measure(
            case.loader,
            case.job(self._manifest, rank=self._peers.rank),
            step.transfer,
            replace(wanted, consume=consume, strict=case.strict, ended=step.note_loss, peers=self._peers),
        )
        allocated, reserved = step.transfer.peak_bytes() or (None, None)
        memory = replace(measured.memory, device_allocated_bytes=allocated, device_reserved_bytes=reserved)
        return replace(measured, memory=memory, loss=step.loss)


class Step:
    """What a case does with each batch: nothing, a training step, or what keeps the device busy for as long.

    Training begins on the same weights always.
    """

    def __init__(
        self, transfer: HostToDevice, trainer: Trainer | None = None, busy: Busy | None = None
    ) -> None:
        self.transfer, self._trainer, self._busy = transfer, trainer, busy
        self.loss: float | None = None

    @classmethod
    def of(cls, case: Case, schema: Schema) -> Step:
        """The case's step, anew."""
        transfer = HostToDevice(pick_device(case.device), case.loader.copies_without_blocking)
        if case.step_s:
            return cls(transfer, busy=Busy(transfer.device, case.step_s))
        if case.model == "none":
            return cls(transfer)
        return cls(transfer, Trainer(case.model, schema, transfer.device, case.seed))

    @property
    def trains(self) -> bool:
        """Whether there is a training step, or what stands in for one."""
        return self._trainer is not None or self._busy is not None

    def __call__(self, batch: DeviceBatch) -> None:
        """Train on a batch, as a training loop does: without waiting for the device."""
        if self._trainer is not None:
            self._trainer.step(batch)
        if self._busy is not None:
            self._busy()

    def note_loss(self) -> None:
        """Keep the loss after the first epoch: how many a round has differs from case to case."""
        if self._trainer is not None and self.loss is None:
            self.loss = self._trainer.loss
