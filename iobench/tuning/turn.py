"""One turn of a loader: an epoch, several short ones, or as much of a long one as there is time for."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from iobench.base import thresholds
from iobench.bench.epoch import collect_garbage, measured_of, timing_of
from iobench.bench.meter import Meter
from iobench.host.counters import Counters
from iobench.host.cpu_speed import CpuSpeedProbe
from iobench.loading.foreign import length_of, samples_in, tensors_of
from iobench.results.parts import Measured, TimingPart

ItemGuard = Callable[[Iterable[Any]], Iterable[Any]]

CYCLES = 2  # of all workers, after the first one, that a cut turn has to see


@dataclass(frozen=True)
class TurnSpec:
    """How long a turn may last, and what is done with each batch.

    An epoch is cut off after `limit_s`, or after `batches` of them; without either it is whole. Epochs
    that are shorter than `least_s` are repeated until they have lasted that long together.
    """

    use: Callable[[Sequence[Any]], None]  # its tensors
    synchronize: Callable[[], None] = lambda: None
    limit_s: float | None = None
    batches: int | None = None
    least_s: float | None = None
    guard: ItemGuard = lambda items: items


@dataclass(frozen=True)
class TurnResult:
    """What a turn showed.

    `epoch_s` and `samples` are of a whole epoch: where it was cut off, what they would have been at the
    pace that it had once every worker had given a batch.
    """

    measured: Measured
    complete: bool
    batches: int  # that came
    of: int | None  # of so many in an epoch, where that is known
    epoch_s: float
    samples: float
    fields: list[tuple[tuple[int, ...], str]]  # shape and dtype of each tensor of the first batch
    took_s: float  # all of it, opening and closing too

    @property
    def rate(self) -> float:
        """Samples per second of a whole epoch."""
        return self.samples / self.epoch_s


def take(
    make: Callable[[], Iterable[Any]], workers: int, wanted: TurnSpec, apart: Collection[int] = ()
) -> TurnResult:
    """Make a loader and go over it; what it raises passes through. ValueError where it gives nothing.

    The memory of processes that are `apart`, by number, is not its own.
    """
    began = time.perf_counter()
    collect_garbage(forking=workers > 0)
    counters = Counters(Path.cwd(), early_snapshot=workers > 0, excluded=apart)
    seen, opening = _Seen(workers), Meter()
    paces = CpuSpeedProbe()
    counters.start()
    try:
        with opening:
            loader = make()
        total, least_s = length_of(loader), thresholds.ROUND_S if wanted.least_s is None else wanted.least_s
        while not seen.epochs or (not seen.cut and seen.elapsed_s < least_s):
            before = seen.batches
            seen.over(loader, wanted)
            if seen.batches == before:
                break  # it is used up
            paces.look()
        if not seen.batches:
            raise ValueError("it gave no batches")
        counters.note_memory()
        del loader
    finally:
        counts = counters.stop()
    epoch_s, samples, complete = seen.epoch(total)
    return TurnResult(
        measured=measured_of(_timing(seen, opening), counts, paces),
        complete=complete,
        batches=seen.batches,
        of=total,
        epoch_s=epoch_s,
        samples=samples,
        fields=seen.fields,
        took_s=time.perf_counter() - began,
    )


class _Seen:
    """What came, and when."""

    def __init__(self, workers: int) -> None:
        self._cycle = max(1, workers)
        self.meter = Meter()
        self.epochs = self.batches = self.samples = self.bytes = 0
        self.elapsed_s, self.cut = 0.0, False
        self.fields: list[tuple[tuple[int, ...], str]] = []
        self._marks = array("d")  # since the epoch began, of each batch
        self._counts = array("q")

    def over(self, loader: Iterable[Any], wanted: TurnSpec) -> None:
        """Go over one epoch; only the first one of a turn is ever cut off."""
        began, self._marks, self._counts = time.perf_counter(), array("d"), array("q")
        with closing(_generator(wanted.guard(loader))) as items:
            for batch in self.meter.over(items):
                tensors = tensors_of(batch)
                wanted.use(tensors)
                self._note(tensors, time.perf_counter() - began)
                if not self.epochs and self._enough(wanted):
                    self.cut = True
                    break
            wanted.synchronize()
            ended = time.perf_counter() - began  # closing what is cut off is no part of an epoch
        self.elapsed_s += ended
        self.epochs += bool(self._marks)

    def epoch(self, total: int | None) -> tuple[float, float, bool]:
        """Seconds and samples of a whole epoch, and whether there was one."""
        came = len(self._marks)
        if not self.cut or came == total:
            return self.elapsed_s / self.epochs, self.samples / self.epochs, True
        return self._expected(total if total is not None else came)

    def _expected(self, total: int) -> tuple[float, float, bool]:
        """The same from part of an epoch: workers give a batch each, one cycle after the other."""
        cycle, came = self._cycle, len(self._marks)
        whole = (came - cycle) // cycle * cycle
        if whole <= 0:
            return self._marks[-1] / came * total, self.samples / came * total, False
        each_s = (self._marks[cycle + whole - 1] - self._marks[cycle - 1]) / whole
        expected = self._marks[cycle - 1] + each_s * max(0, total - cycle)
        return max(expected, 1e-9), self.samples / came * total, False

    def _enough(self, wanted: TurnSpec) -> bool:
        came = len(self._marks)
        if wanted.batches is not None and came >= wanted.batches:
            return True
        late = wanted.limit_s is not None and self._marks[-1] > wanted.limit_s
        return late and came >= self._cycle * (1 + CYCLES)

    def _note(self, tensors: list[Any], at: float) -> None:
        if not self.fields and tensors:
            self.fields = [(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in tensors]
        self._marks.append(at)
        self.batches += 1
        self.samples += samples_in(tensors) or 1
        self.bytes += sum(tensor.nbytes for tensor in tensors)


def _generator(items: Iterable[Any]) -> Generator[Any, None, None]:
    yield from items


def _timing(seen: _Seen, opening: Meter) -> TimingPart:
    came = seen.samples, max(1, seen.bytes)
    timing = timing_of(opening, seen.meter, seen.meter.waits, seen.epochs, came)
    return replace(timing, epochs_s=seen.elapsed_s)
