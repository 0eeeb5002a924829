"""Ray Data: files read by tasks of Ray into its object store, and batches by `iter_torch_batches`.

As its documentation advises for training: files in another order each epoch, rows shuffled within a local
buffer (`shuffle=all` is its random_shuffle, which it calls slow), and a collate function over Arrow's own
memory. Its order is kept whatever tasks end first, so that an epoch can be had again. Members of archives
go through its own decoder, but for those that it would unpickle, which are not read. Its reader of TFRecord
is not used, since it makes a block of every record.
"""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from iobench.base.errors import (
    LoaderFailed,
)
from iobench.base.text import reason
from iobench.formats import Format, option
from iobench.loading.loaders._loader import CopyingLoader, Epochs, Job
from iobench.loading.loaders._ray_sources import SOURCES
from iobench.loading.loaders._workers import MOST_AHEAD, MOST_WORKERS
from iobench.loading.loaders.webdataset import MOST_SHUFFLED

if TYPE_CHECKING:
    from iobench.loading.host_to_device import HostBatch


@dataclass(frozen=True)
class RayData(CopyingLoader):
    """Its own order: files at random, rows within a buffer."""

    name: ClassVar[str] = "ray_data"
    summary: ClassVar[str] = "Ray Data: files read by tasks of Ray, rows shuffled within a buffer"
    library: ClassVar[str] = "ray"
    advised: ClassVar[str] = "prefetch_batches=4"
    modules: ClassVar[tuple[str, ...]] = ("ray", "pyarrow", "pandas")
    extra: ClassVar[str] = "ray_data"
    orders: ClassVar[tuple[str, ...]] = ("sequential", "random")
    own_order: ClassVar[bool] = True
    isolated: ClassVar[bool] = True

    shuffle: str = option(
        "buffer",
        "what random order is: buffer: files, and rows within a buffer; all: random_shuffle of all rows",
        choices=("buffer", "all"),
    )
    shuffle_buffer: int = option(
        1000, "rows that random order shuffles among each other", minimum=1, maximum=MOST_SHUFFLED
    )
    prefetch_batches: int = option(1, "batches that are made ahead", minimum=0, maximum=MOST_AHEAD)
    blocks: int | None = option(
        None, "blocks that a dataset is read in; by default Ray's number", minimum=1, maximum=MOST_AHEAD
    )
    num_cpus: int | None = option(
        None,
        "processors for Ray where it is started here; by default all",
        minimum=1,
        maximum=MOST_WORKERS,
    )

    def reads(self, format: Format) -> bool:
        """Parquet files, Lance datasets and tar shards."""
        return format.name in SOURCES

    def open(self, job: Job) -> Epochs:
        """Ray, which is started where there is none."""
        return RayDataEpochs(self, job)


class RayDataEpochs(Epochs):
    """A dataset, made anew where its files come in another order, and gone over once for each epoch."""

    def __init__(self, loader: RayData, job: Job) -> None:
        from iobench.loading.ray.cluster import connected

        super().__init__(loader, job)
        self._settings = loader
        with job.opener() as reader:  # what is damaged or missing is told here, before Ray is started
            self._source = SOURCES[job.opener.format.name](job.opener, reader)
        self._dataset: tuple[list[str], Any] = [], None
        self._ray = ExitStack()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "lance is not fork-safe")  # what Ray forks is replaced at once
            self._ray.enter_context(connected(loader.num_cpus or len(os.sched_getaffinity(0))))

    @property
    def ahead(self) -> bool:
        """Its tasks and threads do."""
        return True

    def _epoch(self, asked: int) -> Iterator[HostBatch]:
        from ray.exceptions import RayError

        batches = iter(self._batches(asked))
        try:
            for batch in batches:
                yield self.pinned(batch)
        except RayError as error:  # its text is the traceback of a task
            raise LoaderFailed(f"Ray Data over {self.opener.path}: {_told(error)}") from error
        finally:
            del batches
            gc.collect()  # what executes a dataset ends when nothing refers to it

    def _batches(self, epoch: int) -> Any:
        import ray.data

        order, settings = self.job.order, self._settings
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False
        context.execution_options.preserve_order = True
        first, second = np.random.SeedSequence([order.seed, epoch]).generate_state(2).tolist()
        paths, local = list(self._source.paths), dict[str, int]()
        if order.kind == "random" and settings.shuffle == "buffer":
            np.random.default_rng(first).shuffle(paths)
            buffer = max(settings.shuffle_buffer, order.batch_size)
            local = {"local_shuffle_buffer_size": buffer, "local_shuffle_seed": second}
        dataset = self._over(paths)
        if order.kind == "random" and settings.shuffle == "all":
            dataset = dataset.random_shuffle(seed=second)
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what fails is said by who asks for it
        return dataset.iter_torch_batches(
            batch_size=order.batch_size,
            prefetch_batches=settings.prefetch_batches,
            device="cpu",
            collate_fn=self._source.collate(),
            **local,
        )

    def _over(self, paths: list[str]) -> Any:
        """The dataset of these files in this order: it takes a look at them to make one."""
        if self._dataset[0] != paths:
            self._dataset = paths, self._source.read(paths, self._settings.blocks)
        return self._dataset[1]

    def close(self) -> None:
        """End Ray where it was started for this."""
        self._dataset = [], None
        gc.collect()
        self._ray.close()


def _told(error: BaseException) -> str:
    """What was raised first, which Ray wraps in the errors of its tasks."""
    while (inner := getattr(error, "cause", None) or error.__cause__) is not None and inner is not error:
        error = inner
    return reason(error)
