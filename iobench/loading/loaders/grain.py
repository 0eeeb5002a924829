"""Grain (PyGrain): a MapDataset over a source with random access, shuffled by Grain itself.

As its documentation advises: `MapDataset.source(…).shuffle(seed=…).batch(…)`, read by threads as an
IterDataset, and by processes where it has workers, each of which takes every n-th batch.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from iobench.dataset.manifest import Opener
from iobench.formats import Reader, option
from iobench.loading.loaders._loader import CopyingLoader, Epochs, Job
from iobench.loading.loaders._workers import MOST_AHEAD, MOST_WORKERS
from iobench.loading.order import LIMITS
from iobench.loading.tensors import tensors_of

if TYPE_CHECKING:
    from iobench.loading.host_to_device import HostBatch

THREADS, ENDING_S = "grain-prefetch", 10.0


@dataclass(frozen=True)
class Grain(CopyingLoader):
    """Grain's own sampling, batching and prefetching."""

    name: ClassVar[str] = "grain"
    summary: ClassVar[str] = (
        "Grain: a MapDataset, shuffled and batched by Grain, read by threads or processes"
    )
    library: ClassVar[str] = "grain"
    advised: ClassVar[str] = "num_workers={cores}"
    modules: ClassVar[tuple[str, ...]] = ("grain",)
    extra: ClassVar[str] = "grain"
    orders: ClassVar[tuple[str, ...]] = ("sequential", "random")
    own_order: ClassVar[bool] = True
    isolated: ClassVar[bool] = True

    threads: int | None = option(
        None,
        "threads that read in each process; by default Grain's 16",
        minimum=0,
        maximum=LIMITS["threads"][1],
    )
    prefetch: int | None = option(
        None, "batches that these read ahead; by default Grain's 500", minimum=0, maximum=MOST_AHEAD
    )
    num_workers: int = option(
        0, "worker processes, started by spawn each epoch", minimum=0, maximum=MOST_WORKERS
    )

    @property
    def workers(self) -> int:
        """As many as its option says."""
        return self.num_workers

    def open(self, job: Job) -> Epochs:
        """A source whose reader is opened by whichever process reads."""
        return GrainEpochs(self, job)


class Source:
    """What Grain calls a random access data source; each process opens the artifact for itself."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._reader: Reader | None = None

    def open(self) -> Reader:
        """This process's reader, opened on the first call."""
        if self._reader is None:
            self._reader = self._opener()
        return self._reader

    def __len__(self) -> int:
        return self._opener.schema.samples

    def __getitem__(self, row: int) -> dict[str, Any]:
        return (self._reader or self.open()).sample(row)

    def __getstate__(self) -> dict[str, Any]:
        return {"_opener": self._opener, "_reader": None}

    def close(self) -> None:
        """Close this process's reader."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class GrainEpochs(Epochs):
    """A dataset for each epoch, shuffled by another seed."""

    def __init__(self, loader: Grain, job: Job) -> None:
        super().__init__(loader, job)
        self._settings = loader
        self._source = Source(job.opener)
        if not loader.num_workers:
            self._source.open()
        logging.getLogger("absl").setLevel(logging.ERROR)  # it tells of each process that ends

    @property
    def ahead(self) -> bool:
        """Its threads or processes do."""
        return self._settings.threads != 0 or self._settings.num_workers > 0

    def _epoch(self, asked: int) -> Iterator[HostBatch]:
        batches = iter(self._dataset(asked))
        try:
            for batch in batches:
                tensors = tensors_of({name: np.asarray(array) for name, array in batch.items()})
                yield self.pinned(tensors)
        finally:
            batches.close()

    def _dataset(self, epoch: int) -> Any:
        import grain

        order, settings = self.job.order, self._settings
        dataset = grain.MapDataset.source(self._source)
        if order.kind == "random":
            seed = np.random.SeedSequence([order.seed, epoch]).generate_state(1)[0]
            dataset = dataset.shuffle(seed=int(seed))
        chosen = {"num_threads": settings.threads, "prefetch_buffer_size": settings.prefetch}
        options = grain.ReadOptions(**{name: value for name, value in chosen.items() if value is not None})
        read = dataset.batch(order.batch_size).to_iter_dataset(options)
        if not settings.num_workers:
            return read
        return read.mp_prefetch(grain.MultiprocessingOptions(num_workers=settings.num_workers))

    def close(self) -> None:
        """Close the reader of this process, after the threads that Grain only asked to end."""
        for thread in threading.enumerate():
            if thread.name.startswith(THREADS):
                thread.join(ENDING_S)
        self._source.close()
        gc.collect()  # Grain's iterators refer to each other, and with that to views of the files
