"""Batched reads in the main process, the way each format's own library advises.

For memmap that is a tensorclass: slices in sequential order, indices in random order, then
`.to(device)`. For the others, one read per batch into fresh arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from iobench.bench.case import Settings
from iobench.dataset.manifest import Opener
from iobench.formats import Rows
from iobench.loading.loaders._base import Loader
from iobench.loading.stages import UNTIMED, Stages
from iobench.loading.transfer import HostBatch


class Native(Loader):
    """Reads through one reader, one batch at a time."""

    name = "native"

    def __init__(
        self, opener: Opener, settings: Settings, device: torch.device, stages: Stages = UNTIMED
    ) -> None:
        super().__init__(opener, settings, device, stages)
        self._reader = opener()
        self._reader.time_decoding(partial(stages.timed, "decode"))

    def _epoch(self, batches: Sequence[Rows]) -> Iterator[HostBatch]:
        """One `reader.native` a batch, pinned if the settings say so."""
        read, pinned = self.stages.timed("read", self._read), self.stages.timed("host_to_device", _pinned)
        for rows in batches:
            batch = read(rows)
            yield pinned(batch) if self.settings.pin_memory else batch

    def _read(self, rows: Rows) -> HostBatch:
        batch = self._reader.native(rows)
        if isinstance(batch, dict):
            return {name: torch.from_numpy(array) for name, array in batch.items()}
        if isinstance(rows, slice) and self.device.type == "cpu":
            return batch.clone()  # a slice of a map has read nothing, and on the CPU nothing else will
        return batch

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()


def _pinned(batch: HostBatch) -> HostBatch:
    if isinstance(batch, dict):
        return {name: tensor.pin_memory() for name, tensor in batch.items()}
    return batch.pin_memory()
