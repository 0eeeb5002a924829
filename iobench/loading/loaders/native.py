"""Batched reads in the main process, in the way that each format's own library recommends.

For memmap that is a tensorclass: slices in sequential order, indices in random order, then
`.to(device)`. For the other formats it is one read per batch into new arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from iobench.formats import Array, Rows
from iobench.loading.loaders._loader import CopyingLoader, Epochs, Job
from iobench.loading.tensors import converter, pinned, silence_read_only_warning, tensors_of, unmoved

if TYPE_CHECKING:
    import torch

    from iobench.loading.host_to_device import HostBatch


@dataclass(frozen=True)
class Native(CopyingLoader):
    """One reader in the main process, one batch at a time."""

    name: ClassVar[str] = "native"
    summary: ClassVar[str] = "batched reads in the main process, as the format's own library recommends"
    library: ClassVar[str] = "torch"
    ragged: ClassVar[bool] = True

    def open(self, job: Job) -> Epochs:
        """Open a reader in this process."""
        return NativeEpochs(self, job)


class NativeEpochs(Epochs):
    """Epochs of one reader, one batch at a time."""

    def __init__(self, loader: CopyingLoader, job: Job) -> None:
        super().__init__(loader, job)
        self._pins, self._on_cpu = loader.pins(job.device), job.device.startswith("cpu")
        self._reader = job.opener()
        self._convert = converter(job.opener.schema)
        silence_read_only_warning()
        self._reader.time_decoding(partial(self.stages.timed, "decode"))

    def _epoch(self, request: Sequence[Rows]) -> Iterator[HostBatch]:
        """Yield one `reader.native` per batch, pinned if the options request it."""
        read, pin = self.stages.timed("read", self._read), self.stages.timed("host_to_device", pinned)
        collate = None if self.job.collate.is_jagged else self.stages.timed("collate", self.job.collate)
        for rows in request:
            batch = read(rows) if collate is None else collate(read(rows))
            yield pin(batch) if self._pins else batch

    def _read(self, rows: Rows) -> HostBatch:
        batch = self._reader.native(rows)
        if not isinstance(batch, dict):
            return batch.clone() if isinstance(rows, slice) and self._on_cpu else batch
        return tensors_of(batch, self._tensor)

    def _tensor(self, array: Array) -> torch.Tensor:
        # a view of a file has read nothing yet, and on the CPU no later step would
        return self._convert(array.copy() if self._on_cpu and unmoved(array) else array)

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()
