"""The combinations of DataLoader's settings that the reference compares, as cases and contenders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import torch

from iobench.bench.case import Case, Settings, case
from iobench.bench.epoch import collect_garbage, opened
from iobench.bench.meter import Meter
from iobench.dataset.manifest import Opener
from iobench.errors import LoaderFailed
from iobench.formats import Rows
from iobench.loading.loaders import Loader
from iobench.loading.loaders.dataloader import TorchDataLoader
from iobench.loading.stages import UNTIMED, Stages
from iobench.loading.transfer import HostBatch, HostToDevice
from iobench.studies._apart import Heartbeat
from iobench.studies._base import Contender, Took
from iobench.studies._epochs import Training, epochs

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
        return self if device.startswith("cuda") else replace(self, pinned=False, non_blocking=False)

    @property
    def case(self) -> Case:
        """DataLoader over npy, shuffled, with these settings."""
        settings = Settings(
            batch_size=BATCH,
            order="random",
            num_workers=self.workers,
            prefetch_factor=self.ahead,
            start_method="fork" if self.workers else None,  # others start so slowly that it hides the rest
            pin_memory=self.pinned,
            non_blocking=self.non_blocking,
        )
        return case("npy", "dataloader", settings)

    def contender(self, opener: Opener, device: str, count: int) -> Contender:
        """So many epochs of training with these settings; see `epochs`."""
        loader_type = Background if self.background else Resident if self.resident else None
        return epochs(self.on(device).case, opener, device, count, Training, loader_type)


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


class Background(TorchDataLoader):
    """DataLoader in a thread that is a batch ahead of the training."""

    def _epoch(self, batches: Sequence[Rows]) -> Iterator[HostBatch]:
        from prefetch_generator import BackgroundGenerator

        yield from BackgroundGenerator(super()._epoch(batches))


class Resident(Loader):
    """Batches indexed out of tensors that are on the device."""

    name = "resident"

    def __init__(
        self, opener: Opener, settings: Settings, device: torch.device, stages: Stages = UNTIMED
    ) -> None:
        super().__init__(opener, settings, device, stages)
        with opener() as reader:
            whole = reader.batch(slice(0, opener.schema.samples))
        try:
            self._whole = {name: torch.from_numpy(array).to(device) for name, array in whole.items()}
        except torch.OutOfMemoryError as error:
            raise LoaderFailed(f"{opener.path}: not all of it fits on {device}; free memory there") from error

    def _epoch(self, batches: Sequence[Rows]) -> Iterator[HostBatch]:
        for rows in batches:
            index = rows if isinstance(rows, slice) else torch.from_numpy(rows).to(self.device)
            yield {name: tensor[index] for name, tensor in self._whole.items()}

    def close(self) -> None:
        """Let go of the tensors."""
        self._whole = {}


def train_with_both(heartbeat: Heartbeat, opener: Opener, device: str, count: int) -> float:
    """Seconds that so many epochs take with a background thread over workers, if they ever end."""
    epoch, seconds = BOTH.contender(opener, device, 1), 0.0
    for _ in range(count):
        seconds += epoch().seconds
        heartbeat()
    return seconds


def train_unwatched(opener: Opener, device: str, count: int) -> Took:
    """So many epochs with nothing set, of which only the time is measured: the control."""
    one, target = TABLE[10].case, torch.device(device)
    transfer = HostToDevice(target, non_blocking=False)
    transfer.make_room()
    train, order = Training(opener, transfer), one.settings.row_order(opener.schema)
    seconds = 0.0
    for number in range(1, count + 1):
        collect_garbage(forking=False)
        rows = order.batches(opener.schema.samples, number)
        with closing(opened(one, opener, target)) as loader, Meter() as epoch:
            for batch in loader.epoch(rows):
                train(transfer.move(batch))
            transfer.synchronize()
        seconds += epoch.elapsed_s
    return Took(seconds)
