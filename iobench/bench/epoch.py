"""One epoch of one case, from opening the artifact to closing it, under meter and counters."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import torch

from iobench.bench.case import Case
from iobench.bench.meter import Meter
from iobench.dataset.manifest import Opener
from iobench.errors import LoaderFailed, WrongContent
from iobench.formats import Rows
from iobench.host.counters import Counters, Counts
from iobench.loading.loaders import Loader, open_loader
from iobench.loading.stages import UNTIMED, Profile, Stages
from iobench.loading.transfer import DeviceBatch, HostToDevice
from iobench.results.record import Measured

Consumer = Callable[[DeviceBatch], None]


def measure(
    case: Case,
    opener: Opener,
    transfer: HostToDevice,
    number: int,
    consume: Consumer,
    profile: Profile | None = None,
    loader_type: type[Loader] | None = None,
) -> Measured:
    """Run epoch `number` of a case, hand each batch on the device to `consume`, and time it.

    The epoch's clock stops after the device is synchronised; closing is not timed. A `profile` has
    the loader's and the transfer's share of the time told apart; a `loader_type` stands
    in for the one of the case's name. WrongContent where other than all samples came out.
    """
    schema, settings = opener.schema, case.settings
    rows = settings.row_order(schema).batches(schema.samples, number)
    counters, opening, epoch = (
        Counters(opener.path, early_snapshot=settings.num_workers > 0),
        Meter(),
        Meter(),
    )
    collect_garbage(settings.num_workers > 0)
    with _counting(counters) as counts:
        with opening:
            loader = opened(case, opener, transfer.device, profile or UNTIMED, loader_type)
        with closing(loader):
            with epoch:
                samples = _drain(loader, rows, transfer, epoch, consume)
            counters.note_memory()
    if samples != schema.samples:
        raise WrongContent(f"{case.label}: {samples} samples came out of {schema.samples}")
    return Measured(
        samples=samples,
        logical_bytes=schema.logical_bytes,
        open_s=opening.elapsed_s,
        epoch_s=epoch.elapsed_s,
        first_batch_s=epoch.first_wait_s,
        wait_s=epoch.wait_s,
        wait_p50_s=epoch.wait_quantile_s(0.50),
        wait_p99_s=epoch.wait_quantile_s(0.99),
        **_split(profile, loader, opening, epoch),
        **vars(counts[0]),
    )


def opened(
    case: Case,
    opener: Opener,
    device: torch.device,
    stages: Stages = UNTIMED,
    loader_type: type[Loader] | None = None,
) -> Loader:
    """The case's loader, or one of another type, told in which order it will be asked."""
    told = replace(opener, random=case.settings.order != "sequential")
    if loader_type is not None:
        return loader_type(told, case.settings, device, stages)
    return open_loader(case, told, device, stages)


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


def _split(profile: Profile | None, loader: Loader, opening: Meter, epoch: Meter) -> dict[str, Any]:
    if profile is None:
        return {}
    return {
        "stages": profile.seconds(opening.elapsed_s, epoch.elapsed_s, epoch.wait_s, loader.ahead),
        "beside_s": profile.beside_s,
        "spans_s": profile.cost_s,
    }


def _drain(loader: Loader, rows: list[Rows], transfer: HostToDevice, epoch: Meter, consume: Consumer) -> int:
    """Samples that reached the device, all of them by the time this returns."""
    first, samples = loader.opener.schema.fields[0].name, 0
    stages = loader.stages if transfer.device.type == "cuda" else UNTIMED  # on the CPU nothing moves
    try:
        with closing(loader.epoch(rows)) as batches:
            for batch in epoch.over(map(stages.timed("host_to_device", transfer.move), batches)):
                samples += batch[first].shape[0]
                consume(batch)
        stages.timed("host_to_device", transfer.synchronize)()
    except torch.OutOfMemoryError as error:
        reason = str(error).partition(". ")[0]
        raise LoaderFailed(f"{loader.opener.path}: {reason}; use a smaller --batch-size") from error
    return samples


@contextmanager
def _counting(counters: Counters) -> Iterator[list[Counts]]:
    """Counts of the block, in the list once it has ended: by then workers were reaped."""
    counts: list[Counts] = []
    counters.start()
    try:
        yield counts
    finally:
        counts.append(counters.stop())
