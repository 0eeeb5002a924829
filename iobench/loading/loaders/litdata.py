"""LitData's StreamingDataset over chunks that lie on this machine, under its StreamingDataLoader.

As its documentation advises. Random order is its own: chunks at random, and samples within a window of
a chunk (`shuffle_window`). Local chunks are mapped where they lie; where the library would copy them
into a cache of its own, the loader refuses to run.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from iobench.base.errors import (
    LoaderFailed,
)
from iobench.formats import Format, field_name, option
from iobench.host import interrupts
from iobench.loading.loaders._loader import Epochs, Job
from iobench.loading.loaders._workers import WorkerLoader
from iobench.loading.loaders.dataloader import unwarned

if TYPE_CHECKING:
    from iobench.loading.host_to_device import HostBatch


@dataclass(frozen=True)
class LitDataLoader(WorkerLoader):
    """Its own order, over a local folder; nothing is downloaded or copied."""

    name: ClassVar[str] = "litdata"
    summary: ClassVar[str] = "litdata: StreamingDataset over local chunks"
    library: ClassVar[str] = "litdata"
    advised: ClassVar[str] = "num_workers={cores}"
    modules: ClassVar[tuple[str, ...]] = ("litdata",)
    extra: ClassVar[str] = "litdata"
    orders: ClassVar[tuple[str, ...]] = ("sequential", "random")
    own_order: ClassVar[bool] = True
    isolated: ClassVar[bool] = True

    shuffle_window: int | None = option(
        None,
        "samples of a chunk that random order shuffles together; by default litdata's 256, 0 for the chunk",
        minimum=0,
        maximum=1 << 30,
    )

    def reads(self, format: Format) -> bool:
        """Its chunks."""
        return format.name == "litdata"

    def open(self, job: Job) -> Epochs:
        """The dataset, over its index."""
        return LitDataEpochs(self, job)


class LitDataEpochs(Epochs):
    """One dataset and one loader, told the number of each epoch."""

    def __init__(self, loader: LitDataLoader, job: Job) -> None:
        super().__init__(loader, job)
        with job.opener():  # chunks that hold something else are told as everywhere
            pass
        os.environ["LITDATA_DISABLE_VERSION_CHECK"] = "1"  # which asks PyPI
        from litdata import StreamingDataset
        from litdata.streaming.item_loader import PyTreeLoader

        self._settings, self._made = loader, None
        self._items: Any = PyTreeLoader()
        self._dataset: Any = StreamingDataset(
            input_dir=str(job.opener.path),
            item_loader=self._items,
            shuffle=job.order.kind == "random",
            drop_last=False,
            seed=job.order.seed % (1 << 31),
            item_shuffle_window=loader.shuffle_window,
        )
        if not getattr(self._dataset.posix_fast, "in_place", False):
            raise LoaderFailed(
                f"litdata over {job.opener.path}: litdata would copy the chunks into a cache of its own, "
                "because it does not take this file system for a local one; put the dataset on a local disk"
            )

    @property
    def ahead(self) -> bool:
        """Its workers do."""
        return self._settings.num_workers > 0

    def _epoch(self, asked: int) -> Iterator[HostBatch]:
        with interrupts.blocked(), unwarned():
            self._made = loader = self._made or self._loader()
            loader.current_epoch = asked  # it counts on by itself when it begins
            batches = iter(loader)
        names = [field.name for field in self.opener.schema.fields]
        for batch in batches:
            named = dict(_leaves(batch))
            yield {name: named[name] for name in names}

    def _loader(self) -> Any:
        from litdata import StreamingDataLoader

        settings = self._settings
        chosen = {} if settings.prefetch_factor is None else {"prefetch_factor": settings.prefetch_factor}
        return StreamingDataLoader(
            self._dataset,
            batch_size=self.job.order.batch_size,
            num_workers=settings.num_workers,
            pin_memory=bool(settings.pin_memory),
            **chosen,
        )

    def close(self) -> None:
        """Unmap the chunks: the library's caches would keep them."""
        self._made = self._dataset = None
        self._items.close(0)
        gc.collect()


def _leaves(batch: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Each tensor of a batch, by the name of the field that it is: keys of nested dicts are joined."""
    if isinstance(batch, (dict, list, tuple)):
        for key, inner in batch.items() if isinstance(batch, dict) else enumerate(batch):
            yield from _leaves(inner, f"{above}/{key}" if above else str(key))
    else:
        yield field_name(above or "sample"), batch
