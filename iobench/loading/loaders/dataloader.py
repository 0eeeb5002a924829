"""torch's DataLoader over a map-style Dataset, as most training code has it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import from_numpy
from torch.utils.data import DataLoader, Dataset, default_collate

from iobench.bench.case import Settings
from iobench.dataset.manifest import Opener
from iobench.formats import Convert, Reader, Rows
from iobench.host import interrupts
from iobench.loading.loaders._base import Loader
from iobench.loading.stages import UNTIMED, Stages
from iobench.loading.transfer import HostBatch

Sample = Callable[[int, Convert], dict[str, torch.Tensor]]


class SampleDataset(Dataset[dict[str, torch.Tensor]]):
    """One sample per `__getitem__`; each process opens the artifact for itself, when first asked."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._reader: Reader | None = None
        self._sample: Sample = self._first_sample

    def open(self) -> Reader:
        """This process's reader, opened on the first call."""
        if self._reader is None:
            self._reader = self._opener()
            self._sample = self._reader.sample  # spares every later sample the question above
            _silence_read_only_warning()
        return self._reader

    def __len__(self) -> int:
        return self._opener.schema.samples

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return self._sample(row, from_numpy)

    def close(self) -> None:
        """Close this process's reader."""
        if self._reader is not None:
            self._reader.close()
            self._reader, self._sample = None, self._first_sample

    def _first_sample(self, row: int, convert: Convert) -> dict[str, torch.Tensor]:
        return self.open().sample(row, convert)


class BatchDataset(SampleDataset):
    """Whole batches through `__getitems__`, each one read into fresh arrays."""

    def __getitems__(self, rows: Rows) -> dict[str, torch.Tensor]:
        """The batch of these rows."""
        return {name: from_numpy(array) for name, array in self.open().batch(rows).items()}


class TimedDataset(Dataset[Any]):
    """Another one in this process, asked for whole batches in one call each, which is timed."""

    def __init__(self, dataset: SampleDataset, stages: Stages) -> None:
        by_sample = lambda rows: [dataset[row] for row in rows]  # noqa: E731 - as DataLoader itself does
        self.__getitems__ = stages.timed("read", getattr(dataset, "__getitems__", by_sample))


class TorchDataLoader(Loader):
    """A new DataLoader for each epoch, as torch's own default has it: its workers live one epoch."""

    name = "dataloader"

    def __init__(
        self, opener: Opener, settings: Settings, device: torch.device, stages: Stages = UNTIMED
    ) -> None:
        super().__init__(opener, settings, device, stages)
        self._dataset = (SampleDataset if settings.fetch == "sample" else BatchDataset)(opener)
        if not settings.num_workers:
            self._dataset.open().time_decoding(partial(stages.timed, "decode"))

    @property
    def ahead(self) -> bool:
        """Its workers do."""
        return self.settings.num_workers > 0

    def _epoch(self, batches: Sequence[Rows]) -> Iterator[HostBatch]:
        """What DataLoader yields for these rows."""
        settings, collate = self.settings, default_collate if self.settings.fetch == "sample" else _as_it_is
        timed = not self.ahead and self.stages is not UNTIMED
        with interrupts.blocked(), unwarned():
            loader: DataLoader[Any] = DataLoader(
                TimedDataset(self._dataset, self.stages) if timed else self._dataset,
                batch_sampler=self._sampler(batches),
                collate_fn=self.stages.timed("collate", collate) if timed else collate,
                num_workers=settings.num_workers,
                prefetch_factor=settings.prefetch_factor,
                multiprocessing_context=settings.start_method,
                pin_memory=bool(settings.pin_memory),
            )
            workers = iter(loader)
        yield from workers

    def _sampler(self, batches: Sequence[Rows]) -> Any:
        if self.settings.fetch == "batch":
            return batches
        return [range(r.start, r.stop) if isinstance(r, slice) else r.tolist() for r in batches]

    def close(self) -> None:
        """Close the reader of this process; the workers ended with their epoch."""
        self._dataset.close()


def _as_it_is(batch: Any) -> Any:
    return batch


@contextmanager
def unwarned() -> Iterator[None]:
    """Without torch's warning of more workers than cores, at each epoch: how they do is measured here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        yield


def _silence_read_only_warning() -> None:
    """Spend torch's one warning per process about read-only arrays: collate copies them at once."""
    read_only = np.zeros(1)
    read_only.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.from_numpy(read_only)
