"""torch's DataLoader over a map-style Dataset, as in most training code."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from iobench.base import interrupts
from iobench.base.errors import InvalidSettings
from iobench.base.options import declared, option
from iobench.formats import Rows
from iobench.loading.loaders._loader import Epochs, Job, WorkerLoader, fetch_option
from iobench.loading.loaders.sample_datasets import SampleDataset, TimedDataset, collate_function, dataset_of
from iobench.loading.order import Order, row_count
from iobench.loading.stages import UNTIMED
from iobench.loading.tensors import HostBatch

if TYPE_CHECKING:
    from torch.utils.data import DataLoader, DistributedSampler


@dataclass(frozen=True)
class TorchDataLoader(WorkerLoader):
    """A DataLoader over a map-style Dataset, with its usual settings as options."""

    name: ClassVar[str] = "dataloader"
    summary: ClassVar[str] = "torch.utils.data.DataLoader over a map-style Dataset"
    library: ClassVar[str] = "torch"
    ragged: ClassVar[bool] = True
    recommended_options: ClassVar[str] = "num_workers={cores},persistent_workers=yes"
    need_workers: ClassVar[tuple[str, ...]] = ("prefetch_factor", "start_method", "persistent_workers")

    fetch: str = fetch_option()
    start_method: str | None = option(
        None,
        "how workers start; by default Python's default on this system",
        choices=(None, "fork", "spawn", "forkserver"),
    )
    persistent_workers: bool = option(False, "keep workers from epoch to epoch")

    def rows(self, order: Order, samples: int, epoch: int) -> Sequence[Rows]:
        """Return this rank's batches; over several ranks those of torch's DistributedSampler.

        That sampler repeats some samples, and has no blocks or budgets: these are split as for other loaders.
        """
        if not _has_sampler(order):
            return order.batches(samples, epoch)
        sampler = _distributed(order, samples)
        sampler.set_epoch(epoch)
        own = np.fromiter(sampler, np.int64, len(sampler))
        return [own[low : low + order.batch_size] for low in range(0, len(own), order.batch_size)]

    def padding_samples(self, order: Order, samples: int) -> int:
        """Return 1 if DistributedSampler repeats a sample on this rank to give all ranks as many, else 0."""
        if not _has_sampler(order):
            return 0
        last = len(_distributed(order, samples)) - 1
        return int(order.rank + last * order.world_size >= samples)

    def open(self, job: Job) -> Epochs:
        """Build the dataset; each process that reads opens its own reader."""
        return DataLoaderEpochs(self, job)


def _has_sampler(order: Order) -> bool:
    """Return whether DistributedSampler distributes the samples."""
    return order.world_size > 1 and order.kind != "block" and order.budget is None


def _distributed(order: Order, samples: int) -> DistributedSampler[int]:
    from torch.utils.data import DistributedSampler

    return DistributedSampler(
        range(samples),  # type: ignore[arg-type]
        num_replicas=order.world_size,
        rank=order.rank,
        shuffle=order.kind == "random",
        seed=order.seed,
    )


class _BatchSampler:
    """The batches of the current epoch, lists drawn number by number as by torch's samplers.

    Persistent workers keep one DataLoader, and so one sampler.
    """

    def __init__(self) -> None:
        self.batches: Sequence[Rows] = ()

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the numbers of each batch's samples."""
        numbers = self._numbers()
        return ([*islice(numbers, row_count(rows))] for rows in self.batches)

    def __len__(self) -> int:
        return len(self.batches)

    def _numbers(self) -> Iterator[int]:
        for rows in self.batches:
            yield from range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist()


class DataLoaderEpochs(Epochs):
    """A new DataLoader with new workers for each epoch, or a single one if workers persist."""

    def __init__(self, loader: WorkerLoader, job: Job, dataset: SampleDataset | None = None) -> None:
        super().__init__(loader, job)
        self._settings = settings = _settings_of(loader)
        self._start_method = None if job.opener.forkable or not settings.num_workers else "spawn"
        if self._start_method and settings.start_method == "fork":
            raise InvalidSettings(
                f"dataloader: start_method=fork with format {job.opener.format.name}, "
                "whose library must not be forked",
                kind="not-forkable",
                hint="use start_method=spawn",
            )
        self._dataset = dataset or dataset_of(job, settings.fetch)
        self._sampler = _BatchSampler()
        self._persistent: DataLoader[Any] | None = None
        if settings.num_workers and self._start_method is None:
            for module in job.opener.format.modules:  # as a script does, so that no forked worker has to
                import_module(module)
        if not settings.num_workers:
            self._dataset.open_timed(partial(self.stages.timed, "decode"))

    def _epoch(self, request: Sequence[Rows]) -> Iterator[HostBatch]:
        """Yield DataLoader's batches of these rows."""
        self._sampler.batches = request
        batches = started(self._loader)
        try:
            yield from batches
        except GeneratorExit:
            if self._persistent is None:
                _kill_workers(batches)
            raise

    def _loader(self) -> DataLoader[Any]:
        """Return the loader of an epoch."""
        loader = self._persistent or self._build()
        if self._settings.persistent_workers:
            self._persistent = loader
        return loader

    def _class(self) -> type[DataLoader[Any]]:
        from torch.utils.data import DataLoader

        return DataLoader

    def _build(self) -> DataLoader[Any]:
        settings = self._settings
        collate = collate_function(self.job) if settings.fetch == "sample" else _unchanged
        timed = not self.prefetches and self.stages is not UNTIMED
        dataset: Any = TimedDataset(self._dataset, self.stages) if timed else self._dataset
        return self._class()(
            dataset,
            batch_sampler=self._sampler,
            collate_fn=self.stages.timed("collate", collate) if timed else collate,
            multiprocessing_context=settings.start_method or self._start_method,
            persistent_workers=settings.persistent_workers,
            **settings.worker_arguments,
        )

    def close(self) -> None:
        """Close this process's reader and end workers that persist; others ended with their epoch."""
        self._persistent = None
        self._dataset.close()


def _settings_of(loader: WorkerLoader) -> TorchDataLoader:
    """Return the options of a loader that a DataLoader has, too."""
    shared = (spec.name for spec in declared(TorchDataLoader) if hasattr(loader, spec.name))
    return TorchDataLoader(**{name: getattr(loader, name) for name in shared})


def _kill_workers(batches: Any) -> None:
    """End the workers of an epoch that was cut off.

    torch would wait 5 s for each to read its batch, and a worker that exits while its threads pass a batch on
    may abort.
    """
    for worker in getattr(batches, "_workers", ()):  # a DataLoader without workers has none
        worker.terminate()


def _unchanged(batch: Any) -> Any:
    return batch


def started(make: Callable[[], Any]) -> Iterator[Any]:
    """Return the batches of a DataLoader that is made here; Ctrl-C acts when its workers have started."""
    with interrupts.blocked(), unwarned():
        return iter(make())


@contextmanager
def unwarned() -> Iterator[None]:
    """Suppress torch's warning about more workers than cores: their effect is measured."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        yield
