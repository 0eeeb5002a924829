"""One round of one case: opened once, as many epochs as fill it, under meter and counters."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from iobench.base.errors import (
    IobenchError,
    LoaderFailed,
    WrongContent,
)
from iobench.base.text import reason
from iobench.bench.device_clock import DeviceClock
from iobench.bench.meter import Durations, Meter
from iobench.bench.peers import Nobody, Peers
from iobench.host.bus_errors import guarded
from iobench.host.counters import Counters, Counts
from iobench.host.pace import PaceWatch
from iobench.loading.loaders import Asked, Epochs, Job, Loader, failure, samples_of
from iobench.loading.order import row_count
from iobench.loading.stages import UNTIMED, Profile
from iobench.loading.transfer import DeviceBatch, HostToDevice, device_errors
from iobench.results.parts import DiskPart, Measured, MemoryPart, OthersPart, ProcessorPart, TimingPart

Consumer = Callable[[DeviceBatch], None]

MOST_EPOCHS = 10_000  # in a round, and between the numbers of two rounds' epochs


@dataclass
class Round:
    """What is to be measured: which round, what is done with each batch, and how long it should last.

    `seconds` of 0 is a single epoch. `ended` is called after each epoch, outside the clock. All `peers`
    begin each epoch at the same moment.
    """

    number: int
    consume: Consumer
    seconds: float
    profile: Profile | None = None
    strict: bool = False  # synchronise the device after each batch
    ended: Callable[[], None] = lambda: None
    peers: Peers = field(default_factory=Nobody)


def measure(loader: Loader, job: Job, transfer: HostToDevice, wanted: Round) -> Measured:
    """Open a loader, run epochs until they have lasted as long as wanted, and time them.

    Each batch is handed over on the device. An epoch's clock stops after the device is synchronised,
    over ranks that of the slowest; closing is not timed. WrongContent where other than all samples of
    this rank's share came out.
    """
    profile, schema = wanted.profile, job.opener.schema
    job = replace(job, stages=profile or UNTIMED)
    opening, meter, clock = Meter(), Meter(), _clock(transfer, wanted)
    consume = wanted.consume if clock is None else clock.around(wanted.consume)
    counters = Counters(job.opener.path, early_snapshot=loader.workers > 0)
    collect_garbage(forking=loader.workers > 0)
    paces = PaceWatch()
    path = job.opener.path
    with device_errors(str(path)), disk_errors(path), _counting(counters) as counts, guarded(path) as check:
        with opening:
            epochs = opened(loader, job)
        with closing(epochs):
            opening_bytes = counters.disk_so_far()
            consume = _checked(check, consume)
            done = samples = logical_bytes = 0
            whole_s = 0.0  # of all ranks
            while not done or (whole_s < wanted.seconds and done < MOST_EPOCHS):
                asked = asked_of(loader, job, wanted.number * MOST_EPOCHS + done)
                before_s = meter.elapsed_s
                wanted.peers.ready()
                with meter, clock or nullcontext():
                    came, came_bytes = _drain(epochs, asked, transfer, meter, consume)
                _check_count(loader, came, _due(asked, schema.samples))
                whole_s += max(wanted.peers.gathered(meter.elapsed_s - before_s))
                samples, logical_bytes, done = samples + came, logical_bytes + came_bytes, done + 1
                wanted.ended()
                paces.look()
            counters.note_memory()
    waits = meter.waits if clock is None else clock.waits  # the host's own may run ahead of the device
    timing = timing_of(opening, meter, waits, done, (samples, logical_bytes))
    if wanted.peers.count > 1:
        timing = replace(timing, epochs_s=whole_s, own_s=meter.elapsed_s)
    timing = replace(timing, **_split(profile, epochs, opening, meter))
    made = measured_of(timing, counts[0], paces)
    return replace(made, disk=replace(made.disk, opening_bytes=opening_bytes))


def _clock(transfer: HostToDevice, wanted: Round) -> DeviceClock | None:
    """The device's own clock; None on the host, where the meter says the same."""
    return None if transfer.room.is_host else DeviceClock(transfer.room, wanted.strict)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of the disk under an artifact, or of files that have gone, into LoaderFailed."""
    try:
        yield
    except IobenchError:  # some of which are an OSError, too
        raise
    except OSError as error:
        raise LoaderFailed(f"reading {error.filename or path}: {error.strerror or reason(error)}") from error


def _checked(check: Callable[[], None], consume: Consumer) -> Consumer:
    """The same after a look at whether the batch was read from the disk at all."""

    def consume_checked(batch: DeviceBatch) -> None:
        check()
        consume(batch)

    return consume_checked


def opened(loader: Loader, job: Job) -> Epochs:
    """The loader over an artifact whose reader is told in which order it will be asked."""
    told = replace(job.opener, random=job.order.kind != "sequential")
    try:
        return loader.open(replace(job, opener=told))
    except (IobenchError, torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except Exception as error:  # a loader of another package may fail in any way
        raise failure(loader, told, error) from error


def asked_of(loader: Loader, job: Job, number: int) -> Asked:
    """What a loader is asked for an epoch: the rows of its batches, or its number."""
    return number if loader.own_order else loader.rows(job.order, job.opener.schema.samples, number)


@contextmanager
def heap_restored() -> Iterator[None]:
    """Undo what `collect_garbage` does to the heap; what had been frozen before stays so."""
    before = gc.get_freeze_count()
    try:
        yield
    finally:
        if not before:
            gc.unfreeze()


def collect_garbage(forking: bool) -> None:
    """Collect what earlier rounds left, without a look at everything that was imported: a tenth of a second.

    Where workers are forked the heap is as their parent's usually is: what they copy of it by
    looking at it counts as theirs.
    """
    if forking:
        gc.unfreeze()
    gc.collect()
    if not forking:
        gc.freeze()


def timing_of(
    opening: Meter, meter: Meter, waits: Durations, count: int, came: tuple[int, int]
) -> TimingPart:
    """The times of so many epochs in which so many samples and logical bytes came."""
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


def measured_of(timing: TimingPart, counts: Counts, paces: PaceWatch) -> Measured:
    """The parts of a record that whoever measures can know, from what was counted meanwhile."""
    return Measured(
        timing=timing,
        processor=ProcessorPart(
            cpu_s=counts.cpu_s - paces.used_s,
            major_faults=counts.major_faults,
            steal_s=counts.steal_s,
            pace_per_s=paces.stop(),
        ),
        disk=DiskPart(read_bytes=counts.disk_bytes, device_read_bytes=counts.device_disk_bytes),
        memory=MemoryPart(peak_bytes=counts.memory_bytes),
        others=OthersPart(**asdict(counts.others)),
    )


def _split(profile: Profile | None, epochs: Epochs, opening: Meter, meter: Meter) -> dict[str, Any]:
    if profile is None:
        return {}
    return {
        "stages": profile.seconds(opening.elapsed_s, meter.elapsed_s, meter.waits.total_s, epochs.ahead),
        "beside_s": profile.beside_s,
        "spans_s": profile.cost_s,
    }


def _due(asked: Asked, samples: int) -> int:
    """Samples that an epoch of this rank has to give."""
    return samples if isinstance(asked, int) else sum(map(row_count, asked))


def _check_count(loader: Loader, came: int, samples: int) -> None:
    if came == samples or loader.foreign or (loader.repeats and came > samples):
        return
    if loader.drops and 0 < came < samples:
        return
    what = f"dropped {samples - came}" if came < samples else f"repeated {came - samples}"
    raise WrongContent(f"the loader gave {came:,} of {samples:,} samples: it {what}")


def _drain(
    epochs: Epochs, asked: Asked, transfer: HostToDevice, meter: Meter, consume: Consumer
) -> tuple[int, int]:
    """Samples that reached the device and their bytes, all of them by the time this returns."""
    schema, samples, logical_bytes = epochs.opener.schema, 0, 0
    first, foreign = schema.fields[0].name, epochs.loader.foreign
    stages = UNTIMED if transfer.room.is_host else epochs.stages  # on the CPU nothing moves
    with closing(epochs.epoch(asked)) as batches:
        for batch in meter.over(map(stages.timed("host_to_device", transfer.move), batches)):
            if foreign:
                samples += samples_of(batch)
                logical_bytes += sum(one.nbytes for one in batch.values())
            else:
                samples += batch[first].shape[0]
            consume(batch)
    stages.timed("host_to_device", transfer.synchronize)()
    return samples, logical_bytes or samples * schema.sample_bytes


@contextmanager
def _counting(counters: Counters) -> Iterator[list[Counts]]:
    """Counts of the block, in the list once it has ended: by then workers were reaped."""
    counts: list[Counts] = []
    counters.start()
    try:
        yield counts
    finally:
        counts.append(counters.stop())
