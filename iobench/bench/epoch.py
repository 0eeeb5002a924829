"""One timed round: open a source of batches once, and run epochs under meter and counters."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from iobench.base.errors import IobenchError, LoaderFailed, WrongContent
from iobench.base.files import system_errors_as
from iobench.bench.meter import DeviceClock, Meter
from iobench.bench.part import Part, TimeLimit, WindowTimer
from iobench.host.device import is_device_error
from iobench.host.machine_load import Counters, CpuSpeedProbe
from iobench.host.page_cache import map_cached
from iobench.loading.host_to_device import DeviceBatch, HostBatch, HostToDevice, device_errors
from iobench.loading.inspection import samples_of
from iobench.loading.loaders import EpochRequest, Epochs, Job, Loader, failure
from iobench.loading.order import sample_count
from iobench.loading.stages import UNTIMED, StageProfile
from iobench.objects.request_log import LOG
from iobench.results.parts import (
    DiskPart,
    Measured,
    MemoryPart,
    PartialEpoch,
    ProcessorPart,
    RequestsPart,
    TimingPart,
)

T = TypeVar("T")


class ProcessGroup:
    """The ranks that verify or measure one case at the same time, each over its share of the samples.

    Every rank makes the same calls in the same order. A call raises IobenchError if another rank failed. This
    class is the group of a single process.
    """

    rank = 0
    world_size = 1

    def barrier(self) -> None:
        """Block until all ranks arrive."""

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, by rank."""
        return [value]


def disk_errors(path: Path) -> AbstractContextManager[None]:
    """Convert an OSError of the disk or of missing files into LoaderFailed."""
    return system_errors_as(LoaderFailed, "cannot be read", path, kind="read-error")


def opened(loader: Loader, job: Job) -> Epochs:
    """Open the loader, with a reader that knows whether the order is sequential."""
    opener = replace(job.opener, random=job.order.kind != "sequential")
    try:
        return loader.open(replace(job, opener=opener))
    except (IobenchError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a loader of another package may fail in any way
        if is_device_error(error):
            raise
        raise failure(loader, opener, error) from error


def epoch_request(loader: Loader, job: Job, number: int, window: WindowTimer | None = None) -> EpochRequest:
    """Return the request for an epoch: the rows of its batches (map-style) or its number (iterable-style).

    With a window it is one for the part of the epoch around it. An iterable-style loader begins at its head.
    Rows are drawn while the epoch is timed, as by the sampler of a script.
    """
    if loader.iterable_style:
        return number
    rows = loader.rows(job.order, job.opener.schema.samples, number)
    if window is not None:
        rows = window.part_of(rows, job.order, number)
    return rows


@dataclass
class RoundSpec:
    """Specification of a round."""

    number: int  # it determines the numbers of its epochs
    consume: Callable[[DeviceBatch], None]
    seconds: float  # least duration; 0 for a single epoch
    profile: StageProfile | None = None  # collects the time of stages
    batches: int | None = None  # of the window, where the round is a part of an epoch: see `Part`
    limit_s: float = math.inf  # ends a part, however short its window; an epoch, too, if `batches` is given
    cut: TimeLimit | None = None  # ends an epoch over a dataset that is not to be extrapolated
    requested: Callable[[EpochRequest], None] = lambda request: None  # before each epoch, untimed
    warm: bool = False  # the data are in the page cache: their pages are mapped before the clock starts, as
    # in later epochs of a script that keeps its files open
    strict: bool = False  # synchronize the device after each batch
    ended: Callable[[], None] = lambda: None  # called after each epoch; not timed
    group: ProcessGroup = field(default_factory=ProcessGroup)  # they begin each epoch together


COLLECTED_S = 1.0  # in which a short round waits for Python's next full collection
MOST_EPOCHS = 10_000  # in a round; epoch numbers of consecutive rounds are this far apart


class BatchSource(Protocol):
    """Open source of the batches of a round: a loader over a dataset, or any iterable.

    Whether batches are read ahead decides what time in ``next()`` is. Where samples differ in their bytes
    these are `counted` in each batch.
    """

    prefetches: bool
    counted: bool
    sample_bytes: int
    samples_of: Callable[[DeviceBatch], int]

    def epoch(self, number: int) -> Generator[HostBatch, None, None]:
        """Prepare an epoch, untimed, and return its batches."""

    def over(self, batches: Iterator[DeviceBatch], delivered: Callable[[], int]) -> Iterator[DeviceBatch]:
        """Yield the batches of an epoch up to its end, or to that of the part that is measured."""

    def cut_short(self, samples: int) -> bool:
        """Check the number of samples of the last epoch; return True if it was cut short."""

    def partial(self, samples: int, seconds: float, epochs: int) -> PartialEpoch | None:
        """Return the epoch that follows from the samples and seconds of parts; None after whole epochs."""

    def close(self) -> None:
        """Release readers and workers."""


def measure(loader: Loader, job: Job, transfer: HostToDevice, spec: RoundSpec) -> Measured:
    """Open a loader over a dataset, run epochs for the specified duration, and time them.

    Raises WrongContent if the number of samples differs from this rank's share, CorruptArtifact if objects
    were replaced meanwhile.
    """
    opener = job.opener
    with LOG.counting() if opener.remote else nullcontext() as log:
        counting = replace(job, stages=spec.profile or UNTIMED, opener=opener.logging(log))

        def source() -> DatasetSource:
            return DatasetSource(loader, opened(loader, counting), transfer, spec)

        counters = Counters(opener.path, early_snapshot=loader.workers > 0)
        measured = time_round(source, opener.path, counters, transfer, spec, opener.guarded())
        timing = measured.timing
        taken = LOG.take(log, timing.epochs, timing.logical_bytes if timing.partial else None)
    opener.check_versions(loader.unpinned)
    return replace(measured, requests=RequestsPart(**asdict(taken)) if taken else None)


Guard = AbstractContextManager[Callable[[], None]]  # gives a check, called after each batch


def time_round(
    opened_source: Callable[[], BatchSource],
    path: Path,
    counters: Counters,
    transfer: HostToDevice,
    spec: RoundSpec,
    guard: Guard | None = None,
) -> Measured:
    """Open a source of batches, run epochs for the specified duration, and time them.

    Each batch is passed to the consumer on the device. The clock of an epoch stops after the device is
    synchronized; over several ranks the slowest counts. Closing is not timed. `path` is for errors and for
    mapping its pages. The check that `guard` gives raises after each batch what went wrong meanwhile.
    """
    opening, cpu_speed = Meter(), CpuSpeedProbe()
    with device_errors(str(path)), disk_errors(path):
        counters.start()
        try:
            with guard or nullcontext(lambda: None) as check:
                with opening:
                    source = opened_source()
                with closing(source):
                    opening_bytes = counters.disk_so_far()
                    timed = _Round(source, transfer, spec, check)
                    if spec.warm:
                        map_cached(path)
                    timed.run(cpu_speed.sample)
                    counters.note_memory()
        finally:
            counts = counters.stop()  # when workers have been reaped
    return Measured(
        timing=timed.timing(opening),
        processor=ProcessorPart(
            cpu_s=counts.cpu_s - cpu_speed.used_s,
            major_faults=counts.major_faults,
            cpu_speed_per_s=cpu_speed.stop(),
            suspended_s=counts.suspended_s,
            torch_threads=torch.get_num_threads(),
        ),
        disk=DiskPart(
            read_bytes=counts.disk_bytes,
            opening_bytes=opening_bytes,
            device_read_bytes=counts.device_disk_bytes,
        ),
        memory=MemoryPart(peak_bytes=counts.memory_bytes),
        background=counts.background,
    )


class _Round:
    """Epochs of a round over an open source: what they delivered, and how long they took."""

    def __init__(
        self, source: BatchSource, transfer: HostToDevice, spec: RoundSpec, check: Callable[[], None]
    ) -> None:
        self._source, self._transfer, self._spec = source, transfer, spec
        self._clock = clock_of(transfer, spec)
        self._consume = spec.consume if self._clock is None else self._clock.around(spec.consume)
        self._check, self._meter = check, Meter()  # the former for bus errors of mapped files
        self._done = self._samples = self._logical_bytes = 0
        self._whole_s = 0.0  # of the slowest rank

    def run(self, after_epoch: Callable[[], None]) -> None:
        """Run epochs until the round is long enough."""
        gather, collections = self._spec.group.all_gather, _full_collections()
        while not self._done or (any(gather(self._goes_on(collections))) and self._done < MOST_EPOCHS):
            before_s = self._meter.elapsed_s
            came, came_bytes = self._epoch(self._spec.number * MOST_EPOCHS + self._done)
            if self._done and not came:
                return  # an iterator that is exhausted
            short = self._source.cut_short(came)
            self._whole_s += max(gather(self._meter.elapsed_s - before_s))
            self._samples, self._logical_bytes = self._samples + came, self._logical_bytes + came_bytes
            self._done += 1
            self._spec.ended()
            after_epoch()
            if any(gather(short)):
                return

    def _goes_on(self, collections: int) -> bool:
        """Return whether the round is too short, or lacks a full collection of garbage that is due.

        After so many epochs of a loader that makes many objects, Python looks at all objects. That takes as
        long as a short epoch: short rounds with one and without one would differ by half. `collections` are
        those before the round.
        """
        due = gc.get_count()[2] > gc.get_threshold()[2] and _full_collections() == collections
        waits = COLLECTED_S if due and self._spec.seconds else 0.0
        return self._whole_s < max(self._spec.seconds, waits)

    def _epoch(self, number: int) -> tuple[int, int]:
        """Time one epoch or part; return the samples delivered to the device and their bytes."""
        epoch = self._source.epoch(number)
        self._spec.group.barrier()
        clock, profile = self._clock or nullcontext(), self._spec.profile or nullcontext()
        # closing is not timed: a part may leave workers behind
        with closing(epoch) as batches, self._meter, clock, profile:
            return self._drain(batches)

    def _drain(self, batches: Iterator[HostBatch]) -> tuple[int, int]:
        """Run one epoch or part and synchronize; return the samples that came and their bytes."""
        samples = logical_bytes = 0
        count, counted = self._source.samples_of, self._source.counted
        # on the CPU nothing moves
        stages = UNTIMED if self._transfer.device_api.is_host else self._spec.profile or UNTIMED
        moved = self._meter.over(map(stages.timed("host_to_device", self._transfer.move), batches))
        moved = self._source.over(moved, lambda: samples)
        for batch in moved:
            samples += count(batch)
            if counted:
                logical_bytes += sum(one.nbytes for one in batch.values())
            self._check()
            self._consume(batch)
        stages.timed("host_to_device", self._transfer.synchronize)()
        return samples, logical_bytes or samples * self._source.sample_bytes

    def timing(self, opening: Meter) -> TimingPart:
        """Return the timing of all epochs, after a source that took so long to open."""
        own_s, several = self._meter.elapsed_s, self._spec.group.world_size > 1
        # the host may run ahead of the device
        waits = self._meter.waits if self._clock is None else self._clock.waits
        timing = TimingPart(
            samples=self._samples,
            logical_bytes=self._logical_bytes,
            epochs_s=self._whole_s if several else own_s,
            own_s=own_s if several else None,
            epochs=self._done,
            open_s=opening.elapsed_s,
            first_batch_s=waits.first_s,
            wait_s=waits.total_s,
            wait_p50_s=waits.quantile_s(0.50),
            wait_p99_s=waits.quantile_s(0.99),
            partial=self._source.partial(self._samples, own_s, self._done),
        )
        profile = self._spec.profile
        if profile is None:
            return timing
        wait_s, prefetches = self._meter.waits.total_s, self._source.prefetches
        return replace(
            timing,
            stages=profile.seconds(opening.elapsed_s, own_s, wait_s, prefetches),
            reader_threads_s=profile.background_s,
            profiling_s=profile.cost_s,
        )


def _full_collections() -> int:
    return int(gc.get_stats()[2]["collections"])


def clock_of(transfer: HostToDevice, spec: RoundSpec) -> DeviceClock | None:
    """Return the device's clock; None on the CPU, where the meter is equivalent."""
    return None if transfer.device_api.is_host else DeviceClock(transfer.device_api, spec.strict)


class DatasetSource(BatchSource):
    """An open loader over a dataset; a round of it may be parts of an epoch, each with a window."""

    def __init__(self, loader: Loader, epochs: Epochs, transfer: HostToDevice, spec: RoundSpec) -> None:
        self._loader, self._epochs, self._spec = loader, epochs, spec
        self._schema, self._order = epochs.opener.schema, epochs.job.order
        self._request: EpochRequest = 0  # of the last epoch
        part = self._part(spec.number * MOST_EPOCHS)
        self._window = WindowTimer(part, transfer.synchronize, limit_s=spec.limit_s) if part else None
        first, foreign = self._schema.fields[0].name, loader.user_defined
        self.counted = foreign or bool(self._schema.ragged)  # other bytes in every batch
        self.samples_of = samples_of if foreign else lambda batch: len(batch[first])
        self.prefetches, self.sample_bytes = epochs.prefetches, self._schema.sample_bytes

    def _part(self, epoch: int) -> Part | None:
        """Return the part of an epoch that is delivered; None for a whole one without a time limit."""
        if self._spec.batches is None:
            return None
        length = self._order.length(self._schema.samples, epoch)
        ahead = self._epochs.read_ahead
        part = Part.of(self._order, ahead, self._spec.batches, length)
        if part is None and self._spec.limit_s < math.inf:
            part = Part.whole(ahead, length)
        return part

    def epoch(self, number: int) -> Generator[HostBatch, None, None]:
        """Make the request for an epoch, and return its batches."""
        if self._window is not None and (part := self._part(number)) is not None:
            self._window.part = part  # with a budget of tokens epochs differ in their batches
        self._request = epoch_request(self._loader, self._epochs.job, number, self._window)
        self._spec.requested(self._request)
        return self._epochs.epoch(self._request)

    def over(self, batches: Iterator[DeviceBatch], delivered: Callable[[], int]) -> Iterator[DeviceBatch]:
        """Yield the batches of an epoch or of a part, whose window is timed."""
        if self._window is not None:
            batches = self._window.over(batches, delivered, own=self._loader.iterable_style)
        return batches if self._spec.cut is None else self._spec.cut.over(batches)

    def cut_short(self, samples: int) -> bool:
        """Raise WrongContent unless as many samples came as are due; return True if time ended the epoch."""
        if self._cut:
            return True
        short = self._window is not None and self._window.short
        headed = self._window and not self._window.part.is_whole and self._loader.iterable_style
        request, loader = self._request, self._loader
        due = self._schema.samples if isinstance(request, int) else sample_count(request)
        more, fewer = loader.repeats and samples > due, loader.drops and 0 < samples < due
        if not (short or headed or samples == due or loader.user_defined or more or fewer):
            problem = "the loader delivered another number of samples"
            raise WrongContent(problem, kind="wrong-count", expected=f"{due:,}", found=f"{samples:,}")
        return short

    def partial(self, samples: int, seconds: float, epochs: int) -> PartialEpoch | None:
        """Return the epoch that follows from the windows of its parts; None after whole epochs."""
        number, window = self._spec.number * MOST_EPOCHS + epochs - 1, self._window
        last = self._order.batches(self._schema.samples, number)
        if self._cut or window is None or (window.part.count == len(last) and not window.short):
            return None
        extrapolated = window.partial(epochs, (samples, seconds), (last.samples, len(last)))
        return replace(extrapolated, head=self._loader.iterable_style)

    @property
    def _cut(self) -> bool:
        return self._spec.cut is not None and self._spec.cut.ended

    def close(self) -> None:
        """Close the loader."""
        self._epochs.close()
