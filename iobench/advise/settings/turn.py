"""One timed turn of a live loader: an epoch, several short ones, or the part of one that fits in time."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from iobench.advise.settings.watchdog import DeadlineReached
from iobench.base import thresholds
from iobench.base.errors import InvalidSettings, TargetError
from iobench.bench.epoch import BatchSource, RoundSpec, time_round
from iobench.bench.executor import Tick
from iobench.bench.options import MODELS, check_steps
from iobench.bench.training import SimulatedStep, Trainer, TrainingStep
from iobench.formats import Field, Schema
from iobench.host.device import pick_device
from iobench.host.machine_load import Counters
from iobench.loading.host_to_device import DeviceBatch, HostBatch, HostToDevice
from iobench.loading.inspection import Replay, batch_tensors, length_of, samples_of
from iobench.loading.tensors import tensor_of
from iobench.loading.user_errors import loader_errors
from iobench.results.parts import Measured, PartialEpoch

ItemGuard = Callable[[Iterable[Any]], Iterable[Any]]

CYCLES = 2  # of all workers, after the first one, that a cut turn has to cover
LATE = 2  # times its time, from which on one cycle has to do


class Consumer:
    """Runs a model's training step, or a simulated one of `step_ms`, on each batch that a device received.

    InvalidSettings if both are given, or if the model has no field to train on.
    """

    def __init__(self, device: str = "cpu", step_ms: float = 0.0, model: str = "none", seed: int = 0) -> None:
        if model not in MODELS:
            raise InvalidSettings(
                "--model", kind="unknown-choice", expected=f"one of {', '.join(MODELS)}", found=repr(model)
            )
        check_steps((step_ms,), (model,))
        self.device, self.model, self.step_s, self.seed = pick_device(device), model, step_ms / 1000, seed
        self.transfer = HostToDevice(self.device, non_blocking=False)
        busy = SimulatedStep(self.device, self.step_s) if self.step_s else None
        self._step = TrainingStep(self.transfer, busy=busy)
        self.replay: Replay[DeviceBatch] | None = None  # holds the first batches, for the headroom

    @property
    def trains(self) -> bool:
        """True if there is a training step."""
        return bool(self.step_s) or self.model != "none"

    def taken(self, one: Any) -> Any:
        """Return an array of a batch as a tensor, where that is needed."""
        needed = self.trains or not self.transfer.device_api.is_host
        return tensor_of(one) if needed and isinstance(one, np.ndarray) else one

    def __call__(self, batch: DeviceBatch) -> None:
        """Train on one batch on the device."""
        if self.replay is not None and batch:
            self.replay.hold(batch)
        if self.model != "none" and not self._step.trains:
            trainer = Trainer(self.model, _schema(batch), self.device, self.seed)
            self._step = TrainingStep(self.transfer, trainer)
        self._step(batch)


def _schema(batch: DeviceBatch) -> Schema:
    hint = "give --step-ms"
    try:
        fields = [
            Field(name, tuple(one.shape[1:]), str(one.dtype).removeprefix("torch."))
            for name, one in batch.items()
            if one.ndim
        ]
    except ValueError as error:
        problem = f"--model cannot train on its batches: {error}"
        raise InvalidSettings(problem, kind="untrainable-batches", hint=hint) from error
    if not fields:
        problem, kind = "--model cannot train on its batches", "untrainable-batches"
        expected = "tensors with a batch dimension"
        raise InvalidSettings(problem, kind=kind, expected=expected, found="none", hint=hint)
    return Schema(1, tuple(fields))


@dataclass(frozen=True)
class TurnSpec:
    """Length of a turn, and the use of each batch.

    An epoch is cut off after `limit_s` seconds or after `batches` batches; without either it is whole.
    Short epochs are repeated until together they have lasted as long as a round.
    """

    consumer: Consumer = field(default_factory=Consumer)
    limit_s: float | None = None
    batches: int | None = None
    guard: ItemGuard = lambda items: items


class Turn(BatchSource):
    """One timed turn over a loader, as a round of `iobench.bench.epoch`, of which it is the source.

    `make` builds the loader, which has so many worker processes. A cut epoch is extrapolated from the rate
    after the first batch of each. `note` is given the first batch.
    """

    measured: Measured  # after `run`
    prefetches, counted, sample_bytes = False, True, 0  # how much an epoch holds is unknown

    def __init__(
        self,
        make: Callable[[], Iterable[Any]],
        workers: int,
        spec: TurnSpec,
        note: Callable[[Any], None] = lambda batch: None,
    ) -> None:
        self._make, self._note, self._spec = make, note, spec
        self._workers, self.samples_of = workers, samples_of
        self._loader: Any = None  # while it is open
        self.batches, self.wall_s = 0, 0.0  # delivered; opening and closing included
        self.epoch_batches: int | None = None  # None where the length is unknown
        self.ended = False  # the first epoch was cut off, so that no other follows
        self._marks = array("d")  # seconds from the start of the first epoch, of each batch

    @property
    def complete(self) -> bool:
        """True if it was a whole epoch."""
        return self.measured.timing.partial is None

    @property
    def epoch_s(self) -> float:
        """Seconds of a whole epoch."""
        timing = self.measured.timing
        return timing.partial.epoch_s if timing.partial else timing.epochs_s / timing.epochs

    @property
    def samples(self) -> float:
        """Samples of a whole epoch."""
        timing = self.measured.timing
        return timing.partial.epoch_samples if timing.partial else timing.samples / timing.epochs

    def run(self, tick: Tick | None = None, excluded: Collection[int] = ()) -> Turn:
        """Build the loader and time one turn over it; the memory of `excluded` processes does not count.

        TargetError if the loader raises, or yields no batches (``empty``).
        """
        began, consumer = time.perf_counter(), self._spec.consumer
        count = tick or Tick()

        def consume(batch: DeviceBatch) -> None:
            consumer(batch)
            count()

        spec, path = RoundSpec(0, consume, thresholds.ROUND_S), Path.cwd()  # where it reads is unknown
        counters = Counters(path, early_snapshot=self._workers > 0, excluded=excluded)
        self.measured = time_round(self._open, path, counters, consumer.transfer, spec)
        self.wall_s = time.perf_counter() - began
        return self

    def _open(self) -> Turn:
        """Build the loader; its errors become a TargetError."""
        with loader_errors():
            self._loader = self._make()
        self.epoch_batches = length_of(self._loader)
        return self

    def epoch(self, number: int) -> Generator[HostBatch, None, None]:
        """Yield the tensors of each batch, named ``f0``, ``f1`` and so on; errors become a TargetError."""
        with loader_errors():
            for batch in self._spec.guard(self._loader):
                if not self.batches:
                    self._note(batch)
                self.batches += 1
                yield {f"f{n}": self._spec.consumer.taken(one) for n, one in enumerate(batch_tensors(batch))}

    def over(self, batches: Iterator[DeviceBatch], delivered: Callable[[], int]) -> Iterator[DeviceBatch]:
        """Yield the batches of one epoch; only the first one is ever cut off."""
        first = not self._marks
        try:
            yield from self._timed(batches) if first else batches
        except DeadlineReached:
            self.ended = True
            # each worker's first batch alone takes as long as its start
            if not first or len(self._marks) < 2 * max(1, self._workers):
                raise
        if not self._marks:
            raise TargetError("the loader yields no batches", kind="empty")

    def _timed(self, batches: Iterator[DeviceBatch]) -> Iterator[DeviceBatch]:
        """Yield the batches of the first epoch until they are enough."""
        began = time.perf_counter()
        for batch in batches:
            yield batch
            self._marks.append(time.perf_counter() - began)
            self.ended = self._enough()
            if self.ended:
                return

    def cut_short(self, samples: int) -> bool:
        """Return whether the first epoch was cut off."""
        return self.ended

    def partial(self, samples: int, seconds: float, epochs: int) -> PartialEpoch | None:
        """Extrapolate by whole cycles, in each of which every worker delivers one batch."""
        cycle, marks, delivered = max(1, self._workers), self._marks, len(self._marks)
        if not self.ended or delivered == self.epoch_batches:
            return None
        total = delivered if self.epoch_batches is None else self.epoch_batches
        whole = (delivered - cycle) // cycle * cycle
        expected = marks[-1] / delivered * total
        if whole > 0:
            each_s = (marks[cycle + whole - 1] - marks[cycle - 1]) / whole
            expected = max(marks[cycle - 1] + each_s * max(0, total - cycle), 1e-9)
        return PartialEpoch(
            batches=delivered,
            epoch_batches=self.epoch_batches,
            epoch_s=expected,
            epoch_samples=samples / delivered * total,
        )

    def _enough(self) -> bool:
        delivered, limits = len(self._marks), self._spec
        if limits.batches is not None and delivered >= limits.batches:
            return True
        if limits.limit_s is None or self._marks[-1] <= limits.limit_s:
            return False
        cycles = 1 if self._marks[-1] > LATE * limits.limit_s else CYCLES
        return delivered >= max(1, self._workers) * (1 + cycles)

    def close(self) -> None:
        """Release the loader, and with it its workers."""
        self._loader = None
