"""Loaders from another package: one with its own order, one that repeats samples, one that drops some."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from iobench.base.options import option
from iobench.loading.loaders import Epochs, Job, Loader

if TYPE_CHECKING:
    from iobench.loading.host_to_device import HostBatch


@dataclass(frozen=True)
class Tape(Loader):
    """Reads in order and shuffles within a buffer, as stream readers do."""

    name: ClassVar[str] = "tape"
    summary: ClassVar[str] = "reads in order and shuffles within a buffer"
    library: ClassVar[str] = "numpy"
    orders: ClassVar[tuple[str, ...]] = ("random",)
    iterable_style: ClassVar[bool] = True
    isolated: ClassVar[bool] = True

    buffer: int = option(8, "samples per shuffle buffer", minimum=1)

    def open(self, job: Job) -> Epochs:
        """Open one reader."""
        return TapeEpochs(self, job)


class TapeEpochs(Epochs):
    """Epochs in an order that is drawn from the epoch's number."""

    def __init__(self, loader: Tape, job: Job) -> None:
        super().__init__(loader, job)
        self._buffer = loader.buffer
        self._reader = job.opener()

    def _epoch(self, asked: int) -> Iterator[HostBatch]:
        import torch

        rows = self._rows(np.random.default_rng(asked))
        for start in range(0, len(rows), self.job.order.batch_size):
            batch = self._reader.batch(rows[start : start + self.job.order.batch_size])
            yield {name: torch.from_numpy(array) for name, array in batch.items()}

    def _rows(self, rng: np.random.Generator) -> Any:
        rows = np.arange(self.opener.schema.samples)
        for start in range(0, len(rows), self._buffer):
            rng.shuffle(rows[start : start + self._buffer])
        return rows

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()


@dataclass(frozen=True)
class Loop(Tape):
    """A `Tape` that repeats the first samples at the end to fill the last batch."""

    name: ClassVar[str] = "loop"
    summary: ClassVar[str] = "reads in order and fills its last batch with the first samples"
    repeats: ClassVar[bool] = True

    def open(self, job: Job) -> Epochs:
        """Open one reader."""
        return LoopEpochs(self, job)


class LoopEpochs(TapeEpochs):
    """Epochs of full batches."""

    def _rows(self, rng: np.random.Generator) -> Any:
        rows = super()._rows(rng)
        return np.concatenate([rows, rows[: -len(rows) % self.job.order.batch_size]])


@dataclass(frozen=True)
class Clip(Tape):
    """A `Tape` that drops the samples of an incomplete last batch."""

    name: ClassVar[str] = "clip"
    summary: ClassVar[str] = "reads in order and drops an incomplete last batch"
    drops: ClassVar[bool] = True

    def open(self, job: Job) -> Epochs:
        """Open one reader."""
        return ClipEpochs(self, job)


class ClipEpochs(TapeEpochs):
    """Epochs of full batches."""

    def _rows(self, rng: np.random.Generator) -> Any:
        rows = super()._rows(rng)
        return rows[: len(rows) - len(rows) % self.job.order.batch_size]
