"""torch's DataLoader over a map-style Dataset, as most training code has it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from formats import FormatError, Reader, Rows
from iobench.arms import Settings
from iobench.errors import BenchError, LoaderFailed
from iobench.loaders._base import HostBatch, Loader
from iobench.manifest import Opener


class SampleDataset(Dataset[dict[str, torch.Tensor]]):
    """One sample per `__getitem__`; each process opens the artifact for itself, when first asked."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._reader: Reader | None = None

    @property
    def reader(self) -> Reader:
        """This process's reader."""
        if self._reader is None:
            self._reader = self._opener()
            _silence_read_only_warning()
        return self._reader

    def __len__(self) -> int:
        return self._opener.schema.samples

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return (self._reader or self.reader).sample(row, torch.from_numpy)

    def close(self) -> None:
        """Close this process's reader."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class BatchDataset(SampleDataset):
    """Whole batches through `__getitems__`, each one read into fresh arrays."""

    def __getitems__(self, rows: Rows) -> dict[str, torch.Tensor]:
        """The batch of these rows."""
        return {name: torch.from_numpy(array) for name, array in self.reader.batch(rows).items()}


class TorchDataLoader(Loader):
    """A new DataLoader for each epoch, as torch's own default has it: its workers live one epoch."""

    def __init__(self, opener: Opener, settings: Settings, device: torch.device) -> None:
        super().__init__(opener, settings, device)
        self._dataset = (SampleDataset if settings.fetch == "sample" else BatchDataset)(opener)
        if not settings.num_workers:
            _ = self._dataset.reader

    def epoch(self, batches: Sequence[Rows]) -> Iterator[HostBatch]:
        """What DataLoader yields for these rows."""
        settings = self.settings
        loader: DataLoader[Any] = DataLoader(
            self._dataset,
            batch_sampler=self._sampler(batches),
            collate_fn=None if settings.fetch == "sample" else _as_it_is,
            num_workers=settings.num_workers,
            prefetch_factor=settings.prefetch_factor,
            multiprocessing_context=settings.start_method,
            pin_memory=bool(settings.pin_memory),
        )
        try:
            yield from loader
        except (FormatError, BenchError) as error:
            raise _without_traceback(error) from error
        except (RuntimeError, OSError) as error:
            raise LoaderFailed(f"dataloader over {self.opener.path}: {_first_line(error)}") from error

    def _sampler(self, batches: Sequence[Rows]) -> Any:
        if self.settings.fetch == "batch":
            return batches
        return [range(r.start, r.stop) if isinstance(r, slice) else r.tolist() for r in batches]

    def close(self) -> None:
        """Close the reader of this process; the workers ended with their epoch."""
        self._dataset.close()


def _as_it_is(batch: Any) -> Any:
    return batch


def _without_traceback(error: Exception) -> Exception:
    """The same error without the worker's traceback that torch puts into its message."""
    lines = str(error).strip().splitlines()
    if len(lines) < 2:
        return error
    return type(error)(lines[-1].partition(": ")[2] or lines[-1])


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1] if "Original Traceback" in str(error) else lines[0]


def _silence_read_only_warning() -> None:
    """Spend torch's one warning per process about read-only arrays: collate copies them at once."""
    read_only = np.zeros(1)
    read_only.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.from_numpy(read_only)
