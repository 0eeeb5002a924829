"""The reference's combinations of DataLoader settings, as loaders and contenders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from iobench.base.errors import LoaderFailed
from iobench.bench.meter import Meter
from iobench.bench.opening import epoch_request, opened
from iobench.dataset.opener import Opener
from iobench.formats import Rows
from iobench.loading.host_to_device import HostBatch, HostToDevice
from iobench.loading.loaders import Epochs, Job, Loader
from iobench.loading.loaders.dataloader import DataLoaderEpochs, TorchDataLoader
from iobench.loading.order import Order
from iobench.studies._epochs import Training, epochs
from iobench.studies._rounds import Contender, RoundResult
from iobench.studies._subprocess import Heartbeat

BATCH = 256
MANY, FEW = 8, 4  # workers
DEEP, SHALLOW = 8, 2  # prefetch factor


@dataclass(frozen=True)
class Combination:
    """A row of the reference's table: a combination of DataLoader's memory-related settings."""

    pinned: bool = False
    non_blocking: bool = False
    workers: int = 0
    prefetch: int | None = None  # prefetch factor
    background: bool = False  # a prefetching thread between loader and training
    resident: bool = False  # all data on the device before the first batch

    @property
    def label(self) -> str:
        """The settings in words."""
        words = {
            "pinned": self.pinned,
            "non-blocking": self.non_blocking,
            f"{self.workers} workers × {self.prefetch}": self.workers > 0,
            "background thread": self.background,
            "all data on the device": self.resident,
        }
        return ", ".join(word for word, is_set in words.items() if is_set) or "nothing set"

    def on(self, device: str) -> Combination:
        """Return it without the settings that have no effect on a device."""
        return replace(self, pinned=False, non_blocking=False) if device == "cpu" else self

    @property
    def loader(self) -> Loader:
        """A loader with these settings."""
        if self.resident:
            return Resident()
        kind = Background if self.background else TorchDataLoader
        return kind(
            num_workers=self.workers,
            prefetch_factor=self.prefetch,
            start_method="fork"
            if self.workers
            else None,  # other start methods are so slow that they hide everything else
            pin_memory=self.pinned,
            non_blocking=self.non_blocking,
        )

    def contender(self, opener: Opener, device: str, count: int) -> Contender:
        """Return a contender that trains for `count` epochs with these settings; see `epochs`."""
        return epochs(self.on(device).loader, shuffled(opener, device), count, Training)


TABLE = {
    1: Combination(pinned=True),
    2: Combination(True, True),
    3: Combination(True, True, MANY, DEEP),
    4: Combination(True, True, MANY, SHALLOW),
    5: Combination(True, True, FEW, DEEP),
    6: Combination(True, True, FEW, SHALLOW),
    7: Combination(True, True, background=True),
    8: Combination(pinned=True, background=True),
    9: Combination(background=True),
    10: Combination(),
    11: Combination(resident=True),
}
BOTH = Combination(True, True, MANY, DEEP, background=True)  # the reference reports a deadlock


@dataclass(frozen=True)
class Background(TorchDataLoader):
    """A DataLoader in a thread that prefetches one batch."""

    name: ClassVar[str] = "background"
    summary: ClassVar[str] = "DataLoader in a thread that prefetches one batch"

    def open(self, job: Job) -> Epochs:
        """Open a DataLoader behind a thread."""
        return BackgroundEpochs(self, job)


class BackgroundEpochs(DataLoaderEpochs):
    """DataLoader's epochs, prefetched by a thread."""

    prefetches = True  # the thread reads ahead

    def _epoch(self, request: Sequence[Rows]) -> Iterator[HostBatch]:
        from prefetch_generator import BackgroundGenerator

        yield from BackgroundGenerator(super()._epoch(request))


@dataclass(frozen=True)
class Resident(Loader):
    """Indexes batches from tensors that are on the device before the first epoch."""

    name: ClassVar[str] = "resident"
    summary: ClassVar[str] = "batches indexed from tensors on the device"
    library: ClassVar[str] = "torch"

    def open(self, job: Job) -> Epochs:
        """Read all data and copy them to the device; LoaderFailed if they do not fit."""
        return ResidentEpochs(self, job)


class ResidentEpochs(Epochs):
    """Epochs of batches indexed on the device."""

    def __init__(self, loader: Resident, job: Job) -> None:
        super().__init__(loader, job)
        device = self._device = torch.device(job.device)
        with job.opener() as reader:
            whole = reader.batch(slice(0, job.opener.schema.samples))
        try:
            self._whole = {name: torch.from_numpy(array).to(device) for name, array in whole.items()}
        except torch.OutOfMemoryError as error:
            raise LoaderFailed(
                f"the data do not fit into the memory of {device}",
                kind="out-of-memory",
                path=job.opener.path,
                hint="free memory on the device",
            ) from error

    def _epoch(self, request: Sequence[Rows]) -> Iterator[HostBatch]:
        for rows in request:
            index = rows if isinstance(rows, slice) else torch.from_numpy(rows).to(self._device)
            yield {name: tensor[index] for name, tensor in self._whole.items()}

    def close(self) -> None:
        """Release the tensors."""
        self._whole = {}


def shuffled(opener: Opener, device: str) -> Job:
    """Return a job with the reference's batch size, in random order."""
    return Job(opener, Order("random", BATCH), device)


def train_with_both(heartbeat: Heartbeat, opener: Opener, device: str, count: int) -> float:
    """Return the seconds that epochs take with a background thread over workers; may deadlock."""
    epoch, seconds = BOTH.contender(opener, device, 1), 0.0
    for _ in range(count):
        seconds += epoch().seconds
        heartbeat()
    return seconds


def train_unwatched(opener: Opener, device: str, count: int) -> RoundResult:
    """Train for epochs with no setting and measure only their time: the control."""
    loader, job = TABLE[10].loader.on(device), shuffled(opener, device)
    transfer = HostToDevice(torch.device(device), non_blocking=False)
    transfer.release_memory()
    train, meter = Training(opener, transfer), Meter()
    for number in range(1, count + 1):
        request = epoch_request(loader, job, number)
        with closing(opened(loader, job)) as opened_epochs, meter:
            for batch in opened_epochs.epoch(request):
                train(transfer.move(batch))
            transfer.synchronize()
    return RoundResult(meter.elapsed_s)
