"""Lance's own torch dataset: a scan of all columns, whose batches Rust threads read ahead.

As its documentation advises for training on a whole dataset. It is a scan: rows come as they are stored,
and its samplers shuffle fragments alone. Rows by number, in any order, are what `native` takes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from iobench.formats import Format, field_name, option
from iobench.loading.loaders._loader import CopyingLoader, Epochs, Job
from iobench.loading.loaders._workers import MOST_AHEAD
from iobench.loading.loaders.huggingface import tensor_of_column

if TYPE_CHECKING:
    from iobench.loading.host_to_device import HostBatch


@dataclass(frozen=True)
class LanceLoader(CopyingLoader):
    """A scan, in the order in which rows are stored."""

    name: ClassVar[str] = "lance"
    summary: ClassVar[str] = "lance.torch.data.LanceDataset: a scan that is read ahead"
    library: ClassVar[str] = "pylance"
    modules: ClassVar[tuple[str, ...]] = ("lance",)
    extra: ClassVar[str] = "lance"
    orders: ClassVar[tuple[str, ...]] = ("sequential",)
    own_order: ClassVar[bool] = True
    isolated: ClassVar[bool] = True

    readahead: int = option(16, "batches that are read ahead", minimum=1, maximum=MOST_AHEAD)

    def reads(self, format: Format) -> bool:
        """Lance datasets."""
        return format.name == "lance"

    def open(self, job: Job) -> Epochs:
        """The dataset's newest version."""
        return LanceEpochs(self, job)


class LanceEpochs(Epochs):
    """One scan for each epoch."""

    def __init__(self, loader: LanceLoader, job: Job) -> None:
        super().__init__(loader, job)
        with job.opener():  # a dataset that holds something else is told as everywhere
            pass
        from lance import dataset  # after our own import of it, which sets its log
        from lance.torch.data import LanceDataset

        self._columns = {field_name(name): name for name in dataset(str(job.opener.path)).schema.names}
        self._dataset: Any = LanceDataset(
            str(job.opener.path),
            batch_size=job.order.batch_size,
            columns=[self._columns[field.name] for field in job.opener.schema.fields],
            batch_readahead=loader.readahead,
            to_tensor_fn=self._tensors,
            auto_detect_rank=False,
        )

    @property
    def ahead(self) -> bool:
        """Its threads do."""
        return True

    def _epoch(self, asked: int) -> Iterator[HostBatch]:
        for batch in self._dataset:
            yield self.pinned(batch)

    def _tensors(self, batch: Any, **others: Any) -> HostBatch:
        """The columns of a record batch, in memory of their own."""
        fields = self.opener.schema.fields
        return {f.name: tensor_of_column(batch[self._columns[f.name]], f.shape) for f in fields}

    def close(self) -> None:
        """Let go of the dataset."""
        self._dataset = None
        gc.collect()
