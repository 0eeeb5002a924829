"""torchdata: its nodes, or its StatefulDataLoader, over the same map-style Dataset as DataLoader's.

Nodes as its guide for users of DataLoader has them: a sampler's batches, a ParallelMapper in order over
threads or processes, a Prefetcher, a Loader.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from iobench.base.errors import (
    InvalidSettings,
)
from iobench.formats import Rows, option
from iobench.loading.loaders._loader import Epochs, Job
from iobench.loading.loaders._workers import WorkerLoader, fetch_option
from iobench.loading.loaders.dataloader import (
    BatchDataset,
    DataLoaderEpochs,
    SampleDataset,
    TorchDataLoader,
)

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from iobench.loading.host_to_device import HostBatch


@dataclass(frozen=True)
class TorchData(WorkerLoader):
    """Nodes, or the loader that can save its state; both are told the rows of each batch."""

    name: ClassVar[str] = "torchdata"
    summary: ClassVar[str] = "torchdata: nodes, or StatefulDataLoader, over a map-style Dataset"
    library: ClassVar[str] = "torchdata"
    advised: ClassVar[str] = "num_workers={cores},fetch=batch"
    modules: ClassVar[tuple[str, ...]] = ("torchdata",)
    extra: ClassVar[str] = "torchdata"
    isolated: ClassVar[bool] = True
    need_workers: ClassVar[tuple[str, ...]] = ("prefetch_factor", "method")

    api: str = option(
        "nodes", "nodes: torchdata.nodes; stateful: StatefulDataLoader", choices=("nodes", "stateful")
    )
    fetch: str = fetch_option()
    method: str = option("thread", "what workers of nodes are", choices=("thread", "process"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.api == "stateful" and self.method == "process":
            raise InvalidSettings("torchdata: method is of nodes: the workers of api=stateful are processes")

    @property
    def workers(self) -> int:
        """As many as its option says, where they are processes."""
        return self.num_workers if self.api == "stateful" or self.method == "process" else 0

    def open(self, job: Job) -> Epochs:
        """A dataset whose reader is opened by whichever process reads."""
        return StatefulEpochs(self, job) if self.api == "stateful" else NodesEpochs(self, job)


class StatefulEpochs(DataLoaderEpochs):
    """As DataLoader's, with StatefulDataLoader in its place."""

    def __init__(self, loader: TorchData, job: Job) -> None:
        same = TorchDataLoader(
            fetch=loader.fetch,
            num_workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor,
            pin_memory=loader.pin_memory,
        )
        super().__init__(same, job)
        self.loader = loader

    def _class(self) -> type[DataLoader[Any]]:
        from torchdata.stateful_dataloader import StatefulDataLoader

        loader: type[DataLoader[Any]] = StatefulDataLoader
        return loader


class NodesEpochs(Epochs):
    """A chain of nodes for each epoch."""

    def __init__(self, loader: TorchData, job: Job) -> None:
        super().__init__(loader, job)
        self._settings, self._pins = loader, loader.pins(job.device)
        self._dataset = (SampleDataset if loader.fetch == "sample" else BatchDataset)(job.opener)
        if not loader.workers:
            self._dataset.open()

    @property
    def ahead(self) -> bool:
        """Its workers do."""
        return self._settings.num_workers > 0

    def _epoch(self, asked: Sequence[Rows]) -> Iterator[HostBatch]:
        rest = _Rest(asked)
        root = self._nodes(rest)
        root.reset()
        try:
            yield from root  # no Loader around it: nodes end their workers when nothing refers to them
        except GeneratorExit:
            # left in the middle: what is under way is taken, since a worker process that ends before the
            # nodes have taken it leaves their thread with a tensor that is not to be had, and a traceback
            rest.left = True
            with contextlib.suppress(Exception):  # whatever is wrong with what nobody asks for any more
                for _ in root if self._settings.workers else ():
                    pass
            raise

    def _nodes(self, asked: Iterable[Rows]) -> Any:
        from torchdata.nodes import IterableWrapper, ParallelMapper, PinMemory, Prefetcher

        settings = self._settings
        ahead = settings.num_workers * (settings.prefetch_factor or 2)
        node = ParallelMapper(
            IterableWrapper(asked),
            map_fn=_fetching(self._dataset),
            num_workers=settings.num_workers,
            in_order=True,
            method=settings.method,
        )
        if self._pins:
            # without a name of its kind the node's thread would pin for the first device, and wake it up
            node = PinMemory(node, pin_memory_device=self.job.device.partition(":")[0])
        return Prefetcher(node, prefetch_factor=ahead) if ahead else node

    def close(self) -> None:
        """Close the reader of this process."""
        self._dataset.close()


class _Rest:
    """The rows of batches that are yet to be read; none any more once the epoch was `left`."""

    def __init__(self, asked: Sequence[Rows]) -> None:
        self._asked, self.left = asked, False

    def __iter__(self) -> Iterator[Rows]:
        return itertools.takewhile(lambda rows: not self.left, self._asked)


def _fetching(dataset: SampleDataset) -> Callable[[Rows], HostBatch]:
    """What makes a batch of rows; it can be pickled."""
    return dataset.__getitems__ if isinstance(dataset, BatchDataset) else Collated(dataset)


class Collated:
    """One sample at a time, collated as DataLoader does."""

    def __init__(self, dataset: SampleDataset) -> None:
        self._dataset = dataset

    def __call__(self, rows: Rows) -> HostBatch:
        """The batch of these rows."""
        from torch.utils.data import default_collate

        every = range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist()
        return default_collate([self._dataset[row] for row in every])
