"""The combinations of DataLoader's settings that the reference compares, as loaders and contenders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from iobench.base.errors import (
    LoaderFailed,
)
from iobench.bench.epoch import asked_of, collect_garbage, opened
from iobench.bench.meter import Meter
from iobench.dataset.manifest import Opener
from iobench.formats import Rows
from iobench.loading.loaders import Epochs, Job, Loader
from iobench.loading.loaders.dataloader import DataLoaderEpochs, TorchDataLoader
from iobench.loading.order import Order
from iobench.loading.transfer import HostBatch, HostToDevice
from iobench.studies._apart import Heartbeat
from iobench.studies._epochs import Training, epochs
from iobench.studies._turns import Contender, Turn

BATCH = 256
MANY, FEW = 8, 4  # workers, and batches that each is ahead in the next line
AHEAD, BARELY = 8, 2


@dataclass(frozen=True)
class Combination:
    """A row of the reference's table: which of DataLoader's memory-related settings are used."""

    pinned: bool = False
    non_blocking: bool = False
    workers: int = 0
    ahead: int | None = None  # batches of each worker
    background: bool = False  # a thread between loader and training
    resident: bool = False  # all of the data on the device before the first batch

    @property
    def label(self) -> str:
        """What is set, in words."""
        words = {
            "pinned": self.pinned,
            "non-blocking": self.non_blocking,
            f"{self.workers} workers × {self.ahead}": self.workers > 0,
            "background thread": self.background,
            "all on the device": self.resident,
        }
        return ", ".join(word for word, given in words.items() if given) or "nothing set"

    def on(self, device: str) -> Combination:
        """The same as far as it means something on a device."""
        return replace(self, pinned=False, non_blocking=False) if device == "cpu" else self

    @property
    def loader(self) -> Loader:
        """A loader with these settings."""
        if self.resident:
            return Resident()
        kind = Background if self.background else TorchDataLoader
        return kind(
            num_workers=self.workers,
            prefetch_factor=self.ahead,
            start_method="fork" if self.workers else None,  # others start so slowly that it hides the rest
            pin_memory=self.pinned,
            non_blocking=self.non_blocking,
        )

    def contender(self, opener: Opener, device: str, count: int) -> Contender:
        """So many epochs of training with these settings; see `epochs`."""
        return epochs(self.on(device).loader, shuffled(opener, device), count, Training)


TABLE = {
    1: Combination(pinned=True),
    2: Combination(True, True),
    3: Combination(True, True, MANY, AHEAD),
    4: Combination(True, True, MANY, BARELY),
    5: Combination(True, True, FEW, AHEAD),
    6: Combination(True, True, FEW, BARELY),
    7: Combination(True, True, background=True),
    8: Combination(pinned=True, background=True),
    9: Combination(background=True),
    10: Combination(),
    11: Combination(resident=True),
}
BOTH = Combination(True, True, MANY, AHEAD, background=True)  # said to deadlock


@dataclass(frozen=True)
class Background(TorchDataLoader):
    """DataLoader in a thread that is a batch ahead of the training."""

    name: ClassVar[str] = "background"
    summary: ClassVar[str] = "DataLoader in a thread that is a batch ahead"

    def open(self, job: Job) -> Epochs:
        """DataLoader's epochs, passed on by a thread."""
        return BackgroundEpochs(self, job)


class BackgroundEpochs(DataLoaderEpochs):
    """What DataLoader yields, a batch ahead."""

    @property
    def ahead(self) -> bool:
        """The thread is."""
        return True

    def _epoch(self, asked: Sequence[Rows]) -> Iterator[HostBatch]:
        from prefetch_generator import BackgroundGenerator

        yield from BackgroundGenerator(super()._epoch(asked))


@dataclass(frozen=True)
class Resident(Loader):
    """Batches indexed out of tensors that are on the device before the first epoch."""

    name: ClassVar[str] = "resident"
    summary: ClassVar[str] = "batches indexed out of tensors on the device"
    library: ClassVar[str] = "torch"

    def open(self, job: Job) -> Epochs:
        """Read all of it and move it; LoaderFailed where it does not fit."""
        return ResidentEpochs(self, job)


class ResidentEpochs(Epochs):
    """Indexes whole batches."""

    def __init__(self, loader: Resident, job: Job) -> None:
        super().__init__(loader, job)
        device = self._device = torch.device(job.device)
        with job.opener() as reader:
            whole = reader.batch(slice(0, job.opener.schema.samples))
        try:
            self._whole = {name: torch.from_numpy(array).to(device) for name, array in whole.items()}
        except torch.OutOfMemoryError as error:
            raise LoaderFailed(
                f"{job.opener.path}: not all of it fits on {device}; free memory there"
            ) from error

    def _epoch(self, asked: Sequence[Rows]) -> Iterator[HostBatch]:
        for rows in asked:
            index = rows if isinstance(rows, slice) else torch.from_numpy(rows).to(self._device)
            yield {name: tensor[index] for name, tensor in self._whole.items()}

    def close(self) -> None:
        """Let go of the tensors."""
        self._whole = {}


def shuffled(opener: Opener, device: str) -> Job:
    """Batches of the reference's size, in random order."""
    return Job(opener, Order("random", BATCH), device)


def train_with_both(heartbeat: Heartbeat, opener: Opener, device: str, count: int) -> float:
    """Seconds that so many epochs take with a background thread over workers, if they ever end."""
    epoch, seconds = BOTH.contender(opener, device, 1), 0.0
    for _ in range(count):
        seconds += epoch().seconds
        heartbeat()
    return seconds


def train_unwatched(opener: Opener, device: str, count: int) -> Turn:
    """So many epochs with nothing set, of which only the time is measured: the control."""
    loader, job = TABLE[10].loader.on(device), shuffled(opener, device)
    transfer = HostToDevice(torch.device(device), non_blocking=False)
    transfer.make_room()
    train, meter = Training(opener, transfer), Meter()
    for number in range(1, count + 1):
        collect_garbage(forking=False)
        asked = asked_of(loader, job, number)
        with closing(opened(loader, job)) as opened_epochs, meter:
            for batch in opened_epochs.epoch(asked):
                train(transfer.move(batch))
            transfer.synchronize()
    return Turn(meter.elapsed_s)
