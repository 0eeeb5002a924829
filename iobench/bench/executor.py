"""Executors: they verify, measure and trace one case at a time for the run loop."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from iobench.base import thresholds
from iobench.base.errors import RecordError
from iobench.base.text import reason
from iobench.bench.case import WARM_OBJECTS, Case
from iobench.bench.content_check import BatchCheck, PixelCheck, UserLoaderCheck, content_check
from iobench.bench.epoch import ProcessGroup, RoundSpec, epoch_request, measure, opened
from iobench.bench.outcome import BatchCount, Progress
from iobench.bench.part import Proof, TimeLimit
from iobench.bench.training import TrainingStep
from iobench.dataset.manifest import Manifest
from iobench.dataset.verify import verify_in_time
from iobench.loading.host_to_device import DeviceBatch, HostToDevice
from iobench.loading.loaders import Job, Loader
from iobench.loading.stages import StageProfile
from iobench.results.parts import Measured

BATCHES = 64  # viewers cannot open traces of many thousand batches


def write_trace(
    path: Path, loader: Loader, job: Job, transfer: HostToDevice, consume: Callable[[DeviceBatch], None]
) -> None:
    """Write a Chrome trace (chrome://tracing, ui.perfetto.dev) of a case's first 64 batches.

    Raises RecordError if the file cannot be written.
    """
    request = epoch_request(loader, job, 1)
    request = request if isinstance(request, int) else request[:BATCHES]
    with profile(activities=activities_on(transfer.device)) as profiler:
        with record_function("open"):
            epochs = opened(loader, job)
        with closing(epochs), closing(epochs.epoch(request)) as batches:
            for _ in range(BATCHES):
                with record_function("next"):
                    if (batch := next(batches, None)) is None:
                        break
                with record_function("move"):
                    moved = transfer.move(batch)
                with record_function("consume"):
                    consume(moved)
        transfer.synchronize()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(path))
    except (OSError, RuntimeError) as error:
        problem, hint = f"the trace cannot be written: {reason(error)}", "name another file with --out"
        raise RecordError(problem, kind="not-writable", path=path, hint=hint) from error


def activities_on(device: torch.device) -> list[ProfilerActivity]:
    """Return the host's activity, and the device's if this torch can record it."""
    there = getattr(ProfilerActivity, device.type.upper(), ProfilerActivity.CPU)
    return [one for one in ProfilerActivity.__members__.values() if one in (ProfilerActivity.CPU, there)]


class TookTooLong(Exception):
    """A turn was cancelled because its time was over; the message says so to the user."""


@dataclass
class Tick:
    """Callback after each batch: checks for Ctrl-C and updates the progress."""

    check_interrupt: Callable[[], None] = lambda: None
    progress: Progress = field(default_factory=BatchCount)

    def __call__(self) -> None:
        """Count one batch; raises KeyboardInterrupt after Ctrl-C."""
        self.check_interrupt()
        self.progress.count += 1


class Executor(Protocol):
    """Runs cases; an invalid or failing case raises IobenchError.

    The methods after `measure` do nothing by default, as does `ready`.
    """

    def prove(self, case: Case, warmup: int, tick: Tick, limit_s: float = math.inf) -> Proof:
        """Verify a case: run one epoch with every sample hashed on the device, then the other warm-ups.

        An epoch that takes more than `limit_s` is cut, and verified over what it delivered.
        """

    def ready(self, case: Case, tick: Tick, batches: int | None = None) -> None:
        """Prepare a verified case for such a round, before its cache is warmed or evicted."""
        return

    def measure(
        self, case: Case, number: int, tick: Tick, batches: int | None = None, limit_s: float = math.inf
    ) -> list[Measured]:
        """Time round `number` of a case and return one result per rank.

        It is a part of an epoch around a window of so many batches, or whole epochs. The window of a part
        ends after `limit_s`, however short it is.
        """

    def end(self, case: Case) -> None:
        """Release the resources of a case, which may be measured again later."""
        return

    def trace(self, case: Case, path: Path) -> None:
        """Write a torch.profiler trace of a case's first batches."""
        return

    def close(self) -> None:
        """End all processes that were started."""
        return


class InProcess(Executor):
    """Runs cases in this process, which may be one of several ranks."""

    def __init__(self, manifest: Manifest, group: ProcessGroup | None = None) -> None:
        self._manifest, self._group = manifest, group or ProcessGroup()

    def prove(self, case: Case, warmup: int, tick: Tick, limit_s: float = math.inf) -> Proof:
        """Verify and warm up a case; raises WrongContent if the device did not receive the dataset."""
        if self._manifest.unchanged(case.variant):
            self._manifest.opener(case.variant).check()  # a library may abort on damaged pages
        else:
            verify_in_time(self._manifest, case.variant, limit_s)
        check = self._check(case, limit_s)
        step, count = TrainingStep.of(case, self._manifest.schema), itertools.count()

        def consume(batch: DeviceBatch) -> None:
            next(count)
            step.transfer.lag()  # memory that is reused too early shows only if the consumer is late
            check.add(batch)

        limit = TimeLimit(limit_s)
        spec = RoundSpec(0, consume, seconds=0.0, batches=case.max_batches, cut=limit, requested=check.expect)
        timing = self._run(case, spec, tick, step).timing
        part = limit.ended or timing.partial is not None
        result = check.conclude(part)
        if case.cache == WARM_OBJECTS and any(self._group.all_gather(part)):
            self.warm_up(case, tick)  # a whole epoch, whatever it takes: it fills the cache
        for _ in range(warmup - 1):
            self.warm_up(case, tick, case.max_batches, limit_s)
        own_s = timing.epochs_s if timing.own_s is None else timing.own_s
        return Proof(result, own_s / max(1, next(count)), own_s / max(1, timing.samples))

    def _check(self, case: Case, limit_s: float) -> BatchCheck:
        if case.loader.user_defined:
            return UserLoaderCheck(case, self._manifest, limit_s)
        job = case.job(self._manifest, rank=self._group.rank)
        if case.loader.tolerance:
            return PixelCheck(job, case.loader.tolerance)
        return content_check(case.loader, job, self._manifest, self._group, limit_s)

    def warm_up(self, case: Case, tick: Tick, batches: int | None = None, limit_s: float = math.inf) -> None:
        """Run an untimed epoch or part of one, which loads libraries and touches memory."""
        spec = RoundSpec(0, lambda batch: None, seconds=0.0, batches=batches, cut=TimeLimit(limit_s))
        self._run(case, spec, tick)

    def measure(
        self, case: Case, number: int, tick: Tick, batches: int | None = None, limit_s: float = math.inf
    ) -> list[Measured]:
        """Time as many epochs, or parts of one, as fill a round; one with a cold cache."""
        profile = StageProfile() if case.profile else None
        seconds = 0.0 if case.is_cold else thresholds.ROUND_S
        warm = case.cache == "warm"
        spec = RoundSpec(number, lambda batch: None, seconds, profile, batches, limit_s=limit_s, warm=warm)
        return [self._run(case, spec, tick)]

    def trace(self, case: Case, path: Path) -> None:
        """Write a Chrome trace."""
        step = TrainingStep.of(case, self._manifest.schema)
        write_trace(path, case.loader, case.job(self._manifest), step.transfer, step)

    def _run(self, case: Case, spec: RoundSpec, tick: Tick, step: TrainingStep | None = None) -> Measured:
        """Run a round with the case's training step on each batch, after freeing other cases' memory."""
        step, first = step or TrainingStep.of(case, self._manifest.schema), spec.consume
        work = spec.profile.timed("compute", step) if spec.profile and step.trains else step

        def consume(batch: DeviceBatch) -> None:
            tick()
            first(batch)
            work(batch)

        step.transfer.release_memory()
        measured = measure(
            case.loader,
            case.job(self._manifest, rank=self._group.rank),
            step.transfer,
            replace(spec, consume=consume, strict=case.strict, ended=step.note_loss, group=self._group),
        )
        allocated, reserved = step.transfer.peak_bytes() or (None, None)
        memory = replace(measured.memory, device_allocated_bytes=allocated, device_reserved_bytes=reserved)
        # parts of several loaders differ in length, and so do their losses
        loss = step.loss if measured.timing.partial is None else None
        return replace(measured, memory=memory, loss=loss)
