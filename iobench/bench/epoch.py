"""One timed round of a case: open the loader once, and run epochs under meter and counters."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from iobench.base.errors import IobenchError, LoaderFailed, WrongContent
from iobench.base.files import system_errors_as
from iobench.bench.device_clock import DeviceClock
from iobench.bench.meter import Durations, Meter
from iobench.bench.part import Part, WindowTimer
from iobench.bench.process_group import ProcessGroup, SingleProcess
from iobench.host.counters import Counters, Counts
from iobench.host.cpu_speed import CpuSpeedProbe
from iobench.host.page_tables import map_cached
from iobench.loading.host_to_device import DeviceBatch, HostBatch, HostToDevice, device_errors
from iobench.loading.loaders import EpochRequest, Epochs, Job, Loader, failure
from iobench.loading.order import Batches, Order, sample_count
from iobench.loading.stages import UNTIMED, StageProfile
from iobench.loading.user_batch import samples_of
from iobench.objects.request_log import LOG
from iobench.results.parts import (
    BackgroundPart,
    DiskPart,
    Measured,
    MemoryPart,
    PartialEpoch,
    ProcessorPart,
    RequestsPart,
    TimingPart,
)

Consumer = Callable[[DeviceBatch], None]
T = TypeVar("T")

MOST_EPOCHS = 10_000  # in a round; epoch numbers of consecutive rounds are this far apart


class Cut(Protocol):
    """End of an epoch of unknown length, and its extrapolation."""

    ended: bool  # the epoch was cut off, so that no other follows

    def over(self, batches: Iterator[T]) -> Iterator[T]:
        """Yield the batches of an epoch up to its end."""

    def partial(self, samples: int) -> PartialEpoch | None:
        """Return the extrapolated epoch; None for a whole one."""


@dataclass
class RoundSpec:
    """Specification of a round.

    Attributes
    ----------
    number : int
        Round number, which determines the numbers of its epochs.
    consume : callable
        Called with each batch on the device.
    seconds : float
        Least duration; 0 for a single epoch.
    profile : StageProfile or None
        Collects the time of stages.
    batches : int or None
        Batches of the window, where the round is a part of an epoch: see `iobench.bench.part`.
    limit_s : float
        Seconds after which a part's window ends, however short it is.
    cut : Cut or None
        What ends an epoch before its last batch.
    requested : callable
        Called with the request of each epoch before it is timed.
    excluded : collection of int
        Process ids whose memory does not count.
    warm : bool
        The data are in the page cache: their pages are mapped before the clock starts, as in later epochs
        of a script that keeps its files open.
    strict : bool
        Synchronize the device after each batch.
    ended : callable
        Called after each epoch; not timed.
    group : ProcessGroup
        The ranks that begin each epoch at the same moment.
    """

    number: int
    consume: Consumer
    seconds: float
    profile: StageProfile | None = None
    batches: int | None = None
    limit_s: float = math.inf
    cut: Cut | None = None
    requested: Callable[[EpochRequest], None] = lambda request: None
    excluded: Collection[int] = ()
    warm: bool = False
    strict: bool = False
    ended: Callable[[], None] = lambda: None
    group: ProcessGroup = field(default_factory=SingleProcess)


def measure(loader: Loader, job: Job, transfer: HostToDevice, spec: RoundSpec) -> Measured:
    """Open a loader, run epochs for the specified duration, and time them.

    Each batch is passed to the consumer on the device. The clock of an epoch stops after the device is
    synchronized; over several ranks the slowest counts. Closing is not timed. Raises WrongContent if the
    number of samples differs from this rank's share.
    """
    profile, schema = spec.profile, job.opener.schema
    job = replace(job, stages=profile or UNTIMED)
    opening, meter, clock = Meter(), Meter(), clock_of(transfer, spec)
    consume = spec.consume if clock is None else clock.around(spec.consume)
    LOG.clear()
    counters = Counters(job.opener.path, early_snapshot=loader.workers > 0, excluded=spec.excluded)
    cpu_speed = CpuSpeedProbe()
    path, guarded = job.opener.path, job.opener.guarded()
    with device_errors(str(path)), disk_errors(path), _counting(counters) as counts, guarded as check:
        with opening:
            epochs = opened(loader, job)
        with closing(epochs):
            opening_bytes = counters.disk_so_far()
            consume = _checked(check, consume)
            window = _window(epochs, transfer, spec)
            if spec.warm:
                map_cached(path)
            done = samples = logical_bytes = 0
            whole_s = 0.0  # of the slowest rank
            while not done or (whole_s < spec.seconds and done < MOST_EPOCHS):
                request = epoch_request(loader, job, spec.number * MOST_EPOCHS + done, window)
                before_s = meter.elapsed_s
                spec.requested(request)
                spec.group.barrier()
                timed = clock or nullcontext(), profile or nullcontext()
                # closing is not timed: a part may leave workers behind
                with closing(epochs.epoch(request)) as batches, meter, timed[0], timed[1]:
                    came, came_bytes = _drain(epochs, batches, transfer, meter, consume, (window, spec.cut))
                if done and not came:
                    break  # an iterator that is exhausted
                ended = spec.cut is not None and spec.cut.ended
                short = window is not None and window.short
                if not (ended or short or (window and loader.iterable_style)):
                    _check_count(loader, came, _due(request, schema.samples))
                whole_s += max(spec.group.all_gather(meter.elapsed_s - before_s))
                samples, logical_bytes, done = samples + came, logical_bytes + came_bytes, done + 1
                spec.ended()
                cpu_speed.sample()
                if ended or any(spec.group.all_gather(short)):
                    break
            counters.note_memory()
    waits = meter.waits if clock is None else clock.waits  # the host may run ahead of the device
    timing = timing_of(opening, meter, waits, done, (samples, logical_bytes))
    if spec.group.world_size > 1:
        timing = replace(timing, epochs_s=whole_s, own_s=meter.elapsed_s)
    if spec.cut is not None and (partial := spec.cut.partial(samples)):
        timing = replace(timing, partial=partial)
    elif window is not None and not ended:
        partial = _partial(job.order, window, timing, schema.samples)
        timing = replace(timing, partial=replace(partial, head=loader.iterable_style))
    timing = replace(timing, **_split(profile, epochs, opening, meter))
    made = measured_of(timing, counts[0], cpu_speed)
    made = replace(made, disk=replace(made.disk, opening_bytes=opening_bytes))
    return made if loader.workers else replace(made, requests=_requests())  # workers have logs of their own


def _requests() -> RequestsPart | None:
    """Return the requests of this process to object stores in the round; None if there were none."""
    taken = LOG.take()
    if taken is None:
        return None
    return RequestsPart(
        count=taken.count,
        retries=taken.retries,
        fetched_bytes=taken.bytes,
        p50_s=taken.p50_s,
        p99_s=taken.p99_s,
    )


def clock_of(transfer: HostToDevice, spec: RoundSpec) -> DeviceClock | None:
    """Return the device's clock; None on the CPU, where the meter is equivalent."""
    return None if transfer.device_api.is_host else DeviceClock(transfer.device_api, spec.strict)


def disk_errors(path: Path) -> AbstractContextManager[None]:
    """Convert an OSError of the disk or of missing files into LoaderFailed."""
    return system_errors_as(LoaderFailed, "cannot be read", path, kind="read-error")


def _checked(check: Callable[[], None], consume: Consumer) -> Consumer:
    """Return the consumer, preceded by a check for bus errors of mapped files."""

    def consume_checked(batch: DeviceBatch) -> None:
        check()
        consume(batch)

    return consume_checked


def opened(loader: Loader, job: Job) -> Epochs:
    """Open the loader, with a reader that knows whether the order is sequential."""
    opener = replace(job.opener, random=job.order.kind != "sequential")
    try:
        return loader.open(replace(job, opener=opener))
    except (IobenchError, torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except Exception as error:  # a loader of another package may fail in any way
        raise failure(loader, opener, error) from error


def epoch_request(loader: Loader, job: Job, number: int, window: WindowTimer | None = None) -> EpochRequest:
    """Return the request for an epoch: the rows of its batches (map-style) or its number (iterable-style).

    With a window it is one for the part of the epoch around it. An iterable-style loader begins at its head.
    The first piece of the order is drawn before timing starts, unless the loader draws it.
    """
    if loader.iterable_style:
        return number
    rows = loader.rows(job.order, job.opener.schema.samples, number)
    if window is not None:
        rows = window.part_of(rows, job.order, number)
    if isinstance(rows, Batches) and not loader.draws:
        rows.draw()
    return rows


def _window(epochs: Epochs, transfer: HostToDevice, spec: RoundSpec) -> WindowTimer | None:
    """Return the timer of the round's window; None for whole epochs."""
    order, samples = epochs.job.order, epochs.opener.schema.samples
    if spec.batches is None:
        return None
    part = Part.of(order, epochs.read_ahead, spec.batches, order.length(samples))
    return None if part is None else WindowTimer(part, transfer.synchronize, limit_s=spec.limit_s)


def _partial(order: Order, window: WindowTimer, timing: TimingPart, samples: int) -> PartialEpoch:
    length = order.length(samples)
    return window.partial(
        timing.epochs,
        (timing.samples, timing.epochs_s if timing.own_s is None else timing.own_s),
        (order.edge(samples, length), length),
    )


def timing_of(
    opening: Meter, meter: Meter, waits: Durations, count: int, came: tuple[int, int]
) -> TimingPart:
    """Return the timing of `count` epochs; `came` is their number of samples and of logical bytes."""
    return TimingPart(
        samples=came[0],
        logical_bytes=came[1],
        epochs_s=meter.elapsed_s,
        epochs=count,
        open_s=opening.elapsed_s,
        first_batch_s=waits.first_s,
        wait_s=waits.total_s,
        wait_p50_s=waits.quantile_s(0.50),
        wait_p99_s=waits.quantile_s(0.99),
    )


def measured_of(timing: TimingPart, counts: Counts, cpu_speed: CpuSpeedProbe) -> Measured:
    """Return the parts of a record that follow from timing and counters."""
    return Measured(
        timing=timing,
        processor=ProcessorPart(
            cpu_s=counts.cpu_s - cpu_speed.used_s,
            major_faults=counts.major_faults,
            steal_s=counts.steal_s,
            cpu_speed_per_s=cpu_speed.stop(),
            suspended_s=counts.suspended_s,
        ),
        disk=DiskPart(read_bytes=counts.disk_bytes, device_read_bytes=counts.device_disk_bytes),
        memory=MemoryPart(peak_bytes=counts.memory_bytes),
        background=BackgroundPart(**asdict(counts.background)),
    )


def _split(profile: StageProfile | None, epochs: Epochs, opening: Meter, meter: Meter) -> dict[str, Any]:
    if profile is None:
        return {}
    return {
        "stages": profile.seconds(opening.elapsed_s, meter.elapsed_s, meter.waits.total_s, epochs.prefetches),
        "reader_threads_s": profile.background_s,
        "profiling_s": profile.cost_s,
    }


def _due(request: EpochRequest, samples: int) -> int:
    """Return the number of samples due in an epoch of this rank."""
    return samples if isinstance(request, int) else sample_count(request)


def _check_count(loader: Loader, came: int, samples: int) -> None:
    if came == samples or loader.user_defined or (loader.repeats and came > samples):
        return
    if loader.drops and 0 < came < samples:
        return
    raise WrongContent(
        "the loader delivered another number of samples",
        kind="wrong-count",
        expected=f"{samples:,}",
        found=f"{came:,}",
    )


def _drain(
    epochs: Epochs,
    batches: Iterator[HostBatch],
    transfer: HostToDevice,
    meter: Meter,
    consume: Consumer,
    ends: tuple[WindowTimer | None, Cut | None],
) -> tuple[int, int]:
    """Run one epoch or part and synchronize; return the samples delivered to the device and their bytes."""
    schema, samples, logical_bytes = epochs.opener.schema, 0, 0
    first, foreign = schema.fields[0].name, epochs.loader.user_defined
    counted = foreign or bool(schema.ragged)  # other bytes in every batch
    stages = UNTIMED if transfer.device_api.is_host else epochs.stages  # on the CPU nothing moves
    moved = meter.over(map(stages.timed("host_to_device", transfer.move), batches))
    window, cut = ends
    count: Callable[[DeviceBatch], int] = samples_of if foreign else lambda batch: len(batch[first])
    if window is not None:
        moved = window.over(moved, lambda: samples, epochs.loader.iterable_style)
    for batch in moved if cut is None else cut.over(moved):
        samples += count(batch)
        if counted:
            logical_bytes += sum(one.nbytes for one in batch.values())
        consume(batch)
    stages.timed("host_to_device", transfer.synchronize)()
    return samples, logical_bytes or samples * schema.sample_bytes


@contextmanager
def _counting(counters: Counters) -> Iterator[list[Counts]]:
    """Count within the block; the counts are in the list at its end, when workers have been reaped."""
    counts: list[Counts] = []
    counters.start()
    try:
        yield counts
    finally:
        counts.append(counters.stop())
