"""One timed turn of a live loader: an epoch, several short ones, or the part of one that fits in time."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from iobench.advise.settings.consumer import Consumer
from iobench.advise.settings.watchdog import DeadlineReached
from iobench.base import thresholds
from iobench.base.errors import TargetError
from iobench.bench.epoch import measure
from iobench.bench.executor import Tick
from iobench.bench.round_spec import RoundSpec
from iobench.dataset.opener import Opener
from iobench.formats import Field, Schema
from iobench.formats.npy import Npy
from iobench.loading.batching import Batching
from iobench.loading.host_to_device import DeviceBatch, HostBatch
from iobench.loading.inspection import batch_tensors, length_of
from iobench.loading.loaders import EpochRequest, Epochs, Job, Loader
from iobench.loading.user_errors import loader_errors
from iobench.results.parts import Measured, PartialEpoch

T = TypeVar("T")
ItemGuard = Callable[[Iterable[Any]], Iterable[Any]]

CYCLES = 2  # of all workers, after the first one, that a cut turn has to cover
LATE = 2  # times its time, from which on one cycle has to do
UNKNOWN = Schema(1, (Field("batch", (), "uint8"),))


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


class Turn:
    """One timed turn over a loader, as a round of `iobench.bench.epoch`.

    `make` builds the loader, which has so many worker processes. A cut epoch is extrapolated from the rate
    after the first batch of each.
    """

    measured: Measured  # after `run`

    def __init__(self, make: Callable[[], Iterable[Any]], workers: int, spec: TurnSpec) -> None:
        self.make, self.workers, self._spec, self._cycle = make, workers, spec, max(1, workers)
        self.batches, self.wall_s = 0, 0.0  # delivered; opening and closing included
        self.epoch_batches: int | None = None  # None where the length is unknown
        self.fields: list[tuple[tuple[int, ...], str]] = []  # shape and dtype of each tensor
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

        job = Job(_NoData(Npy(), Path.cwd(), UNKNOWN), Batching().row_order(UNKNOWN), str(consumer.device))
        spec = RoundSpec(0, consume, thresholds.ROUND_S, cut=self, excluded=excluded)
        self.measured = measure(_LiveLoader(self), job, consumer.transfer, spec)
        self.wall_s = time.perf_counter() - began
        return self

    def items(self, loader: Iterable[Any]) -> Iterator[HostBatch]:
        """Yield the tensors of each batch of one epoch, named ``f0``, ``f1`` and so on."""
        for batch in self._spec.guard(loader):
            tensors = batch_tensors(batch)
            if not self.fields:
                self.fields = [(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in tensors]
            self.batches += 1
            yield {f"f{n}": self._spec.consumer.taken(one) for n, one in enumerate(tensors)}

    def over(self, batches: Iterator[T]) -> Iterator[T]:
        """Yield the batches of one epoch; only the first one is ever cut off."""
        first = not self._marks
        try:
            yield from self._timed(batches) if first else batches
        except DeadlineReached:
            self.ended = True
            if not first or not self._representative:
                raise
        if not self._marks:
            raise TargetError("the loader yields no batches", kind="empty")

    def _timed(self, batches: Iterator[T]) -> Iterator[T]:
        """Yield the batches of the first epoch until they are enough."""
        began = time.perf_counter()
        for batch in batches:
            yield batch
            self._marks.append(time.perf_counter() - began)
            self.ended = self._enough()
            if self.ended:
                return

    def partial(self, samples: int) -> PartialEpoch | None:
        """Extrapolate by whole cycles, in each of which every worker delivers one batch."""
        cycle, marks, delivered = self._cycle, self._marks, len(self._marks)
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
        return delivered >= self._cycle * (1 + cycles)

    @property
    def _representative(self) -> bool:
        """True if more came than each worker's first batch, which takes as long as its start."""
        return len(self._marks) >= 2 * self._cycle


class _NoData(Opener):
    """Stands for an artifact that there is none of: a live loader has its own data."""

    def guarded(self) -> AbstractContextManager[Callable[[], None]]:
        """Guard nothing."""
        return nullcontext(lambda: None)


@dataclass(frozen=True)
class _LiveLoader(Loader):
    """The loader of a turn."""

    name: ClassVar[str] = "live"
    library: ClassVar[str] = "torch"
    iterable_style: ClassVar[bool] = True
    user_defined: ClassVar[bool] = True

    turn: Turn

    def __post_init__(self) -> None:
        """Skip the check of options: there are none."""

    @property
    def workers(self) -> int:
        """Number of its worker processes."""
        return self.turn.workers

    def open(self, job: Job) -> Epochs:
        """Build the loader; its errors become a TargetError."""
        return _LiveEpochs(self.turn, self, job)


class _LiveEpochs(Epochs):
    """Epochs of a live loader."""

    def __init__(self, turn: Turn, loader: Loader, job: Job) -> None:
        super().__init__(loader, job)
        self._turn = turn
        with loader_errors():
            self._live: Any = turn.make()
        turn.epoch_batches = length_of(self._live)

    def epoch(self, request: EpochRequest) -> Generator[HostBatch, None, None]:
        """Yield the tensors of each batch; errors of the loader become a TargetError."""
        with loader_errors():
            yield from self._epoch(request)

    def _epoch(self, request: EpochRequest) -> Iterator[HostBatch]:
        return self._turn.items(self._live)

    def close(self) -> None:
        """Release the loader, and with it its workers."""
        self._live = None
