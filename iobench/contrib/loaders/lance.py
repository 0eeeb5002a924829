"""Lance's own torch dataset: a scan of all columns, which Rust threads read ahead from a disk or S3.

This is what Lance's documentation recommends for training on a whole dataset. A scan returns rows in stored
order; its samplers shuffle only fragments. The loader `native` reads rows by number, in any order.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from iobench.base.options import option
from iobench.contrib.loaders._shared import tensor_of_column
from iobench.formats import field_names
from iobench.loading.loaders import MAX_PREFETCH, CopyingLoader, Epochs, Job
from iobench.loading.tensors import HostBatch

if TYPE_CHECKING:
    from iobench.contrib.formats.lance.reader import LanceReader


@dataclass(frozen=True)
class LanceLoader(CopyingLoader):
    """An iterable-style loader: a scan in stored order."""

    name: ClassVar[str] = "lance"
    summary: ClassVar[str] = "lance.torch.data.LanceDataset: a scan with readahead"
    library: ClassVar[str] = "pylance"
    format_names: ClassVar[tuple[str, ...]] = ("lance",)
    modules: ClassVar[tuple[str, ...]] = ("lance",)
    schemes: ClassVar[tuple[str, ...]] = ("s3",)
    unpinned: ClassVar[tuple[str, ...]] = schemes
    orders: ClassVar[tuple[str, ...]] = ("sequential",)
    iterable_style: ClassVar[bool] = True

    readahead: int = option(16, "batches to read ahead", minimum=1, maximum=MAX_PREFETCH)

    def open(self, job: Job) -> Epochs:
        """Open the dataset's newest version."""
        return LanceEpochs(self, job)


class LanceEpochs(Epochs):
    """A new scan for each epoch."""

    prefetches = True  # its threads read ahead

    def __init__(self, loader: LanceLoader, job: Job) -> None:
        super().__init__(loader, job)
        with job.opener() as reader:  # checks the files as every loader does
            dataset = cast("LanceReader", reader).dataset
        from lance.torch.data import LanceDataset  # after iobench.formats has set its log level

        self._columns = field_names(dataset.schema.names)
        self._dataset: Any = LanceDataset(
            dataset,
            batch_size=job.order.batch_size,
            columns=[self._columns[field.name] for field in job.opener.schema.fields],
            batch_readahead=loader.readahead,
            to_tensor_fn=self._tensors,
            auto_detect_rank=False,
        )

    def _epoch(self, request: int) -> Iterator[HostBatch]:
        try:
            yield from map(self.pinned, self._dataset)
        except (OSError, ValueError) as error:
            if self.opener.remote is None:
                raise
            from iobench.contrib.formats.lance.reader import store_error

            raise store_error(self.opener.remote.files.url, error) from None

    def _tensors(self, batch: Any, **others: Any) -> HostBatch:
        """Convert the columns of a record batch, in new memory."""
        fields = self.opener.schema.fields
        return {f.name: tensor_of_column(batch[self._columns[f.name]], f.shape) for f in fields}

    def close(self) -> None:
        """Release the dataset."""
        self._dataset = None
        gc.collect()
