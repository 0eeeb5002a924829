"""One timed round of a case: open the loader once, and run epochs under meter and counters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, replace

from iobench.base.errors import WrongContent
from iobench.bench.device_clock import DeviceClock
from iobench.bench.meter import Meter
from iobench.bench.opening import disk_errors, epoch_request, opened
from iobench.bench.part import Part, WindowTimer
from iobench.bench.round_spec import RoundSpec
from iobench.host.counters import Counters, Counts
from iobench.host.cpu_speed import CpuSpeedProbe
from iobench.host.page_tables import map_cached
from iobench.loading.host_to_device import DeviceBatch, HostBatch, HostToDevice, device_errors
from iobench.loading.loaders import EpochRequest, Epochs, Job, Loader
from iobench.loading.order import sample_count
from iobench.loading.stages import UNTIMED
from iobench.loading.user_batch import samples_of
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

MOST_EPOCHS = 10_000  # in a round; epoch numbers of consecutive rounds are this far apart


def measure(loader: Loader, job: Job, transfer: HostToDevice, spec: RoundSpec) -> Measured:
    """Open a loader, run epochs for the specified duration, and time them.

    Each batch is passed to the consumer on the device. The clock of an epoch stops after the device is
    synchronized; over several ranks the slowest counts. Closing is not timed. Raises WrongContent if the
    number of samples differs from this rank's share, CorruptArtifact if objects were replaced meanwhile.
    """
    with LOG.counting() if job.opener.remote else nullcontext() as log:
        counting = replace(job, stages=spec.profile or UNTIMED, opener=job.opener.logging(log))
        measured = _round(loader, counting, transfer, spec)
        timing = measured.timing
        taken = LOG.take(log, timing.epochs, timing.logical_bytes if timing.partial else None)
    job.opener.check_versions(loader.unpinned)
    return replace(measured, requests=RequestsPart(**asdict(taken)) if taken else None)


def _round(loader: Loader, job: Job, transfer: HostToDevice, spec: RoundSpec) -> Measured:
    opening, path = Meter(), job.opener.path
    counters = Counters(path, early_snapshot=loader.workers > 0, excluded=spec.excluded)
    cpu_speed, guarded = CpuSpeedProbe(), job.opener.guarded()
    with device_errors(str(path)), disk_errors(path), _counting(counters) as counts, guarded as check:
        with opening:
            epochs = opened(loader, job)
        with closing(epochs):
            opening_bytes = counters.disk_so_far()
            made = _Round(loader, epochs, transfer, spec, check)
            if spec.warm:
                map_cached(path)
            made.run(cpu_speed.sample)
            counters.note_memory()
    return _measured(made.timing(opening), counts[0], cpu_speed, opening_bytes)


class _Round:
    """Epochs of a round over an open loader: what they delivered, and how long they took."""

    def __init__(
        self,
        loader: Loader,
        epochs: Epochs,
        transfer: HostToDevice,
        spec: RoundSpec,
        check: Callable[[], None],
    ) -> None:
        self._loader, self._epochs, self._transfer, self._spec = loader, epochs, transfer, spec
        self._schema, self._order = epochs.opener.schema, epochs.job.order
        self._clock = clock_of(transfer, spec)
        self._consume = spec.consume if self._clock is None else self._clock.around(spec.consume)
        self._check = check  # for bus errors of mapped files
        self._window, self._meter = self._timer(), Meter()
        self._done = self._samples = self._logical_bytes = 0
        self._whole_s = 0.0  # of the slowest rank

    def _timer(self) -> WindowTimer | None:
        """Return the timer of the round's windows; None for whole epochs."""
        part = self._part(self._spec.number * MOST_EPOCHS)
        if part is None:
            return None
        return WindowTimer(part, self._transfer.synchronize, limit_s=self._spec.limit_s)

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

    @property
    def _ended(self) -> bool:
        """True if the last epoch was cut off."""
        return self._spec.cut is not None and self._spec.cut.ended

    def run(self, after_epoch: Callable[[], None]) -> None:
        """Run epochs until the round is long enough."""
        gather = self._spec.group.all_gather
        while not self._done or (self._whole_s < self._spec.seconds and self._done < MOST_EPOCHS):
            number = self._spec.number * MOST_EPOCHS + self._done
            if self._window is not None and (part := self._part(number)) is not None:
                self._window.part = part  # with a budget of tokens epochs differ in their batches
            request = epoch_request(self._loader, self._epochs.job, number, self._window)
            before_s = self._meter.elapsed_s
            came, came_bytes = self._epoch(request)
            if self._done and not came:
                return  # an iterator that is exhausted
            short = self._window is not None and self._window.short
            headed = self._window and not self._window.part.is_whole and self._loader.iterable_style
            if not (self._ended or short or headed):
                self._check_count(came, request)
            self._whole_s += max(gather(self._meter.elapsed_s - before_s))
            self._samples, self._logical_bytes = self._samples + came, self._logical_bytes + came_bytes
            self._done += 1
            self._spec.ended()
            after_epoch()
            if self._ended or any(gather(short)):
                return

    def _epoch(self, request: EpochRequest) -> tuple[int, int]:
        """Time one epoch or part; return the samples delivered to the device and their bytes."""
        self._spec.requested(request)
        self._spec.group.barrier()
        clock, profile = self._clock or nullcontext(), self._spec.profile or nullcontext()
        # closing is not timed: a part may leave workers behind
        with closing(self._epochs.epoch(request)) as batches, self._meter, clock, profile:
            return self._drain(batches)

    def _drain(self, batches: Iterator[HostBatch]) -> tuple[int, int]:
        """Run one epoch or part and synchronize; return the samples that came and their bytes."""
        samples = logical_bytes = 0
        first, foreign = self._schema.fields[0].name, self._loader.user_defined
        counted = foreign or bool(self._schema.ragged)  # other bytes in every batch
        # on the CPU nothing moves
        stages = UNTIMED if self._transfer.device_api.is_host else self._epochs.stages
        moved = self._meter.over(map(stages.timed("host_to_device", self._transfer.move), batches))
        count: Callable[[DeviceBatch], int] = samples_of if foreign else lambda batch: len(batch[first])
        if self._window is not None:
            moved = self._window.over(moved, lambda: samples, self._loader.iterable_style)
        for batch in moved if self._spec.cut is None else self._spec.cut.over(moved):
            samples += count(batch)
            if counted:
                logical_bytes += sum(one.nbytes for one in batch.values())
            self._check()
            self._consume(batch)
        stages.timed("host_to_device", self._transfer.synchronize)()
        return samples, logical_bytes or samples * self._schema.sample_bytes

    def _check_count(self, came: int, request: EpochRequest) -> None:
        """Raise WrongContent unless as many samples came as are due from this rank."""
        due = self._schema.samples if isinstance(request, int) else sample_count(request)
        loader = self._loader
        if came == due or loader.user_defined or (loader.repeats and came > due):
            return
        if loader.drops and 0 < came < due:
            return
        raise WrongContent(
            "the loader delivered another number of samples",
            kind="wrong-count",
            expected=f"{due:,}",
            found=f"{came:,}",
        )

    def timing(self, opening: Meter) -> TimingPart:
        """Return the timing of all epochs, after a loader that took so long to open."""
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
            partial=self._partial(),
        )
        profile = self._spec.profile
        if profile is None:
            return timing
        wait_s, prefetches = self._meter.waits.total_s, self._epochs.prefetches
        return replace(
            timing,
            stages=profile.seconds(opening.elapsed_s, own_s, wait_s, prefetches),
            reader_threads_s=profile.background_s,
            profiling_s=profile.cost_s,
        )

    def _partial(self) -> PartialEpoch | None:
        """Return the extrapolated epoch; None after whole ones."""
        cut, window = self._spec.cut, self._window
        if cut is not None and (extrapolated := cut.partial(self._samples)):
            return extrapolated
        last = self._order.batches(self._schema.samples, self._spec.number * MOST_EPOCHS + self._done - 1)
        if window is None or self._ended or (window.part.count == len(last) and not window.short):
            return None
        whole = last.samples, len(last)
        extrapolated = window.partial(self._done, (self._samples, self._meter.elapsed_s), whole)
        return replace(extrapolated, head=self._loader.iterable_style)


def clock_of(transfer: HostToDevice, spec: RoundSpec) -> DeviceClock | None:
    """Return the device's clock; None on the CPU, where the meter is equivalent."""
    return None if transfer.device_api.is_host else DeviceClock(transfer.device_api, spec.strict)


def _measured(
    timing: TimingPart, counts: Counts, cpu_speed: CpuSpeedProbe, opening_bytes: int | None
) -> Measured:
    """Return the parts of a record that follow from timing and counters."""
    return Measured(
        timing=timing,
        processor=ProcessorPart(
            cpu_s=counts.cpu_s - cpu_speed.used_s,
            major_faults=counts.major_faults,
            cpu_speed_per_s=cpu_speed.stop(),
            suspended_s=counts.suspended_s,
        ),
        disk=DiskPart(
            read_bytes=counts.disk_bytes,
            opening_bytes=opening_bytes,
            device_read_bytes=counts.device_disk_bytes,
        ),
        memory=MemoryPart(peak_bytes=counts.memory_bytes),
        background=counts.background,
    )


@contextmanager
def _counting(counters: Counters) -> Iterator[list[Counts]]:
    """Count within the block; the counts are in the list at its end, when workers have been reaped."""
    counts: list[Counts] = []
    counters.start()
    try:
        yield counts
    finally:
        counts.append(counters.stop())
