"""One timed turn of a loader: an epoch, several short ones, or the part of a long one that fits in time."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from iobench.base import thresholds
from iobench.base.errors import TargetError
from iobench.bench.epoch import measured_of, timing_of
from iobench.bench.meter import Meter
from iobench.host.counters import Counters
from iobench.host.cpu_speed import CpuSpeedProbe
from iobench.loading.inspection import batch_tensors, length_of, samples_in
from iobench.results.parts import Measured, PartialEpoch, TimingPart

ItemGuard = Callable[[Iterable[Any]], Iterable[Any]]

CYCLES = 2  # of all workers, after the first one, that a cut turn has to cover


@dataclass(frozen=True)
class TurnSpec:
    """Length of a turn, and the use of each batch.

    An epoch is cut off after `limit_s` seconds or after `batches` batches; without either it is whole.
    Epochs shorter than `min_s` are repeated until together they have lasted that long.
    """

    consume: Callable[[Sequence[Any]], None]  # is given the tensors of a batch
    synchronize: Callable[[], None] = lambda: None
    limit_s: float | None = None
    batches: int | None = None
    min_s: float | None = None
    guard: ItemGuard = lambda items: items


@dataclass(frozen=True)
class TurnResult:
    """Measurements of one turn.

    `epoch_s` and `samples` are those of a whole epoch. Where it was cut off they are extrapolated from the
    rate after the first batch of every worker. `epoch_batches` is None where the length is unknown.
    """

    measured: Measured
    batches: int  # delivered
    epoch_batches: int | None
    epoch_s: float
    samples: float
    fields: list[tuple[tuple[int, ...], str]]  # shape and dtype of each tensor of the first batch
    wall_s: float  # including opening and closing

    @property
    def complete(self) -> bool:
        """True if it was a whole epoch."""
        return self.measured.timing.partial is None


def run_turn(
    make: Callable[[], Iterable[Any]], workers: int, spec: TurnSpec, excluded: Collection[int] = ()
) -> TurnResult:
    """Build a loader and time one turn over it; errors of the loader pass through.

    Parameters
    ----------
    make : callable
        Builds the loader.
    workers : int
        Number of its worker processes.
    spec : TurnSpec
        Length of the turn, and the use of each batch.
    excluded : collection of int
        Process ids whose memory does not count.

    Raises
    ------
    TargetError
        The loader yields no batches (``empty``).
    """
    began = time.perf_counter()
    counters = Counters(Path.cwd(), early_snapshot=workers > 0, excluded=excluded)
    stream, opening = _TimedStream(workers), Meter()
    cpu_speed = CpuSpeedProbe()
    counters.start()
    try:
        with opening:
            loader = make()
        total, min_s = length_of(loader), thresholds.ROUND_S if spec.min_s is None else spec.min_s
        while not stream.epochs or (not stream.cut and stream.elapsed_s < min_s):
            before = stream.batches
            stream.run_epoch(loader, spec)
            if stream.batches == before:
                break  # an iterator that is exhausted
            cpu_speed.sample()
        if not stream.batches:
            raise TargetError("the loader yields no batches", kind="empty")
        counters.note_memory()
        del loader
    finally:
        counts = counters.stop()
    epoch_s, samples, complete = stream.epoch(total)
    timing, partial = _timing(stream, opening), None
    if not complete:
        partial = PartialEpoch(
            batches=stream.batches, epoch_batches=total, epoch_s=epoch_s, epoch_samples=samples
        )
    return TurnResult(
        measured=measured_of(replace(timing, partial=partial), counts, cpu_speed),
        batches=stream.batches,
        epoch_batches=total,
        epoch_s=epoch_s,
        samples=samples,
        fields=stream.fields,
        wall_s=time.perf_counter() - began,
    )


class _TimedStream:
    """Delivered batches and their times."""

    def __init__(self, workers: int) -> None:
        self._cycle = max(1, workers)
        self.meter = Meter()
        self.epochs = self.batches = self.samples = self.bytes = 0
        self.elapsed_s, self.cut = 0.0, False
        self.fields: list[tuple[tuple[int, ...], str]] = []
        self._marks = array("d")  # seconds from the start of the epoch, of each batch

    def run_epoch(self, loader: Iterable[Any], spec: TurnSpec) -> None:
        """Time one epoch; only the first one of a turn is ever cut off."""
        began, self._marks = time.perf_counter(), array("d")
        with closing(_generator(spec.guard(loader))) as items:
            for batch in self.meter.over(items):
                tensors = batch_tensors(batch)
                spec.consume(tensors)
                self._note(tensors, time.perf_counter() - began)
                if not self.epochs and self._enough(spec):
                    self.cut = True
                    break
            spec.synchronize()
            ended = time.perf_counter() - began  # closing a cut epoch is not part of it
        self.elapsed_s += ended
        self.epochs += bool(self._marks)

    def epoch(self, total: int | None) -> tuple[float, float, bool]:
        """Return seconds and samples of a whole epoch, and whether one was whole."""
        delivered = len(self._marks)
        if not self.cut or delivered == total:
            return self.elapsed_s / self.epochs, self.samples / self.epochs, True
        return self._extrapolated(total if total is not None else delivered)

    def _extrapolated(self, total: int) -> tuple[float, float, bool]:
        """Extrapolate by whole cycles, in each of which every worker delivers one batch."""
        cycle, delivered = self._cycle, len(self._marks)
        whole = (delivered - cycle) // cycle * cycle
        if whole <= 0:
            return self._marks[-1] / delivered * total, self.samples / delivered * total, False
        each_s = (self._marks[cycle + whole - 1] - self._marks[cycle - 1]) / whole
        expected = self._marks[cycle - 1] + each_s * max(0, total - cycle)
        return max(expected, 1e-9), self.samples / delivered * total, False

    def _enough(self, spec: TurnSpec) -> bool:
        delivered = len(self._marks)
        if spec.batches is not None and delivered >= spec.batches:
            return True
        late = spec.limit_s is not None and self._marks[-1] > spec.limit_s
        return late and delivered >= self._cycle * (1 + CYCLES)

    def _note(self, tensors: list[Any], at: float) -> None:
        if not self.fields and tensors:
            self.fields = [(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in tensors]
        self._marks.append(at)
        self.batches += 1
        self.samples += samples_in(tensors) or 1
        self.bytes += sum(tensor.nbytes for tensor in tensors)


def _generator(items: Iterable[Any]) -> Generator[Any, None, None]:
    yield from items


def _timing(stream: _TimedStream, opening: Meter) -> TimingPart:
    delivered = stream.samples, max(1, stream.bytes)
    timing = timing_of(opening, stream.meter, stream.meter.waits, stream.epochs, delivered)
    return replace(timing, epochs_s=stream.elapsed_s)
