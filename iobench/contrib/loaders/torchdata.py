"""torchdata: its nodes or its StatefulDataLoader over DataLoader's map-style Dataset.

The nodes follow torchdata's migration guide for users of DataLoader: the batches of a sampler, a
ParallelMapper with order kept over threads or processes, and a Prefetcher.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from iobench.base.errors import InvalidSettings
from iobench.base.options import option
from iobench.formats import Rows
from iobench.loading.loaders import Epochs, Job, WorkerLoader, fetch_option
from iobench.loading.loaders.dataloader import DataLoaderEpochs
from iobench.loading.loaders.sample_datasets import BatchDataset, SampleDataset, collate_function, dataset_of
from iobench.loading.tensors import HostBatch

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


@dataclass(frozen=True)
class TorchData(WorkerLoader):
    """A map-style loader: nodes, or the DataLoader that can save its state."""

    name: ClassVar[str] = "torchdata"
    summary: ClassVar[str] = "torchdata: nodes, or StatefulDataLoader, over a map-style Dataset"
    library: ClassVar[str] = "torchdata"
    recommended_options: ClassVar[str] = "num_workers={cores},fetch=batch"
    modules: ClassVar[tuple[str, ...]] = ("torchdata",)
    stateful: ClassVar[bool] = True
    ragged: ClassVar[bool] = True
    need_workers: ClassVar[tuple[str, ...]] = ("prefetch_factor", "method")

    api: str = option(
        "nodes", "nodes: torchdata.nodes; stateful: StatefulDataLoader", choices=("nodes", "stateful")
    )
    fetch: str = fetch_option()
    method: str = option("thread", "workers of nodes: threads or processes", choices=("thread", "process"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.api == "stateful" and self.method == "process":
            problem = "torchdata: method=process with api=stateful, whose workers are always processes"
            raise InvalidSettings(problem, "conflicting-options", hint="give method with api=nodes only")

    @property
    def workers(self) -> int:
        """The option `num_workers` if workers are processes, else 0."""
        return self.num_workers if self.api == "stateful" or self.method == "process" else 0

    def open(self, job: Job) -> Epochs:
        """Build the dataset; each process that reads opens its own reader."""
        return StatefulEpochs(self, job) if self.api == "stateful" else NodesEpochs(self, job)


class StatefulEpochs(DataLoaderEpochs):
    """DataLoader's epochs with StatefulDataLoader in its place."""

    def _class(self) -> type[DataLoader[Any]]:
        from torchdata.stateful_dataloader import StatefulDataLoader

        loader: type[DataLoader[Any]] = StatefulDataLoader
        return loader

    def _build(self) -> DataLoader[Any]:
        loader: DataLoader[Any] = self.resumable(super()._build())
        return loader


class NodesEpochs(Epochs):
    """A new chain of nodes for each epoch."""

    def __init__(self, loader: TorchData, job: Job) -> None:
        super().__init__(loader, job)
        self._settings, self._pins = loader, loader.pins(job.device)
        self._dataset = dataset_of(job, loader.fetch)
        if not loader.workers:
            self._dataset.open()

    @property
    def prefetches(self) -> bool:
        """True if there are workers."""
        return self._settings.num_workers > 0

    def _epoch(self, request: Sequence[Rows]) -> Iterator[HostBatch]:
        stopped = threading.Event()
        remaining = itertools.takewhile(lambda rows: not stopped.is_set(), request)
        self._library = root = self._nodes(remaining)
        root.reset(self._resumed)  # which is how a node loads a state
        self._resumed = None
        try:
            yield from root  # without a Loader, so that its workers end when nothing refers to it
        except GeneratorExit:
            # abandoned: batches in flight are received first. If a worker process ended before, a thread of
            # the nodes would fail to receive its tensor and print a traceback
            stopped.set()
            with contextlib.suppress(Exception):  # errors of batches that are not needed any more
                for _ in root if self._settings.workers else ():
                    pass
            raise

    def _nodes(self, rows: Iterable[Rows]) -> Any:
        from torchdata.nodes import IterableWrapper, ParallelMapper, PinMemory, Prefetcher

        settings, fetch = self._settings, partial(_collated, self._dataset, collate_function(self.job))
        prefetch = settings.num_workers * (settings.prefetch_factor or 2)
        node = ParallelMapper(
            IterableWrapper(rows),
            map_fn=self._dataset.__getitems__ if isinstance(self._dataset, BatchDataset) else fetch,
            num_workers=settings.num_workers,
            in_order=True,
            method=settings.method,
        )
        if self._pins:
            # without a device type the node's thread would pin for the first device and initialize it
            node = PinMemory(node, pin_memory_device=self.job.device.partition(":")[0])
        return Prefetcher(node, prefetch_factor=prefetch) if prefetch else node

    def close(self) -> None:
        """Close the reader of this process."""
        self._dataset.close()


def _collated(dataset: SampleDataset, collate: Callable[[list[Any]], HostBatch], rows: Rows) -> HostBatch:
    """Read one sample at a time and collate them as DataLoader does."""
    indices = range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist()
    return collate([dataset[row] for row in indices])
