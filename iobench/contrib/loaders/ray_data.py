"""Ray Data: Ray tasks read files into the object store, and `iter_torch_batches` returns batches.

This follows Ray's documentation for training: the order of files changes each epoch, rows are shuffled in
a local buffer (`shuffle=all` is `random_shuffle`, which Ray's documentation calls slow), and a collate
function works on Arrow's own memory. The order does not depend on which tasks end first, so an epoch can be
repeated. Ray's decoder reads the members of archives, except those that it would unpickle. Ray's reader of
TFRecord is not used: it makes a block of every record.
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

from iobench.base.errors import IobenchError, LoaderFailed
from iobench.base.options import option
from iobench.base.text import reason
from iobench.contrib.loaders._ray_sources import SOURCES
from iobench.contrib.loaders.webdataset import MAX_SHUFFLED
from iobench.loading.loaders import CopyingLoader, Epochs, Job
from iobench.loading.loaders.workers import MAX_PREFETCH, MAX_WORKERS

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.loading.host_to_device import HostBatch


@dataclass(frozen=True)
class RayData(CopyingLoader):
    """An iterable-style loader: shuffles files, and rows within a buffer."""

    name: ClassVar[str] = "ray_data"
    summary: ClassVar[str] = "Ray Data: files read by tasks of Ray, rows shuffled within a buffer"
    library: ClassVar[str] = "ray"
    format_names: ClassVar[tuple[str, ...]] = tuple(SOURCES)
    recommended_options: ClassVar[str] = "prefetch_batches=4"
    modules: ClassVar[tuple[str, ...]] = ("ray", "pyarrow", "pandas")
    extra: ClassVar[str] = "ray_data"
    orders: ClassVar[tuple[str, ...]] = ("sequential", "random")
    iterable_style: ClassVar[bool] = True
    isolated: ClassVar[bool] = True

    shuffle: str = option(
        "buffer",
        "random order; buffer: shuffles files, and rows within a buffer; all: random_shuffle of all rows",
        choices=("buffer", "all"),
    )
    shuffle_buffer: int = option(
        1000, "rows in the buffer that random order shuffles", minimum=1, maximum=MAX_SHUFFLED
    )
    prefetch_batches: int = option(1, "batches to read ahead", minimum=0, maximum=MAX_PREFETCH)
    blocks: int | None = option(
        None, "blocks that a dataset is split into; by default Ray's number", minimum=1, maximum=MAX_PREFETCH
    )
    num_cpus: int | None = option(
        None, "cores for Ray if iobench starts it; by default all", minimum=1, maximum=MAX_WORKERS
    )

    @property
    def read_ahead(self) -> int:
        """The option `prefetch_batches`, and the batch in the making."""
        return 1 + self.prefetch_batches

    def open(self, job: Job) -> Epochs:
        """Connect to Ray, or start it if none is running."""
        return RayDataEpochs(self, job)


class RayDataEpochs(Epochs):
    """One dataset, built again when the order of its files changes, and iterated over once for each epoch."""

    prefetches = True  # its tasks and threads read ahead

    def __init__(self, loader: RayData, job: Job) -> None:
        from iobench.contrib.ray.ray_runtime import connected

        super().__init__(loader, job)
        self._settings = loader
        with job.opener() as reader:  # reports damaged or missing files before Ray is started
            self._source = SOURCES[job.opener.format.name](job.opener, reader)
        self._dataset: tuple[list[str], Any] = [], None
        self._ray = ExitStack()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "lance is not fork-safe")  # Ray's forks call exec immediately
            self._ray.enter_context(connected(loader.num_cpus or len(os.sched_getaffinity(0))))

    def _epoch(self, request: int) -> Iterator[HostBatch]:
        from ray.exceptions import RayError

        batches = iter(self._batches(request))
        try:
            for batch in batches:
                yield self.pinned(batch)
        except RayError as error:  # its text is the traceback of a task
            raise _failure(error, self.opener.path) from error
        finally:
            del batches
            gc.collect()  # the executor of a dataset ends when nothing refers to it

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
        dataset = self._dataset_of(paths)
        if order.kind == "random" and settings.shuffle == "all":
            dataset = dataset.random_shuffle(seed=second)
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # the consumer reports failures
        return dataset.iter_torch_batches(
            batch_size=order.batch_size,
            prefetch_batches=settings.prefetch_batches,
            device="cpu",
            collate_fn=self._source.collate(),
            **local,
        )

    def _dataset_of(self, paths: list[str]) -> Any:
        """Return the dataset of files in this order; building one reads their metadata."""
        if self._dataset[0] != paths:
            self._dataset = paths, self._source.read(paths, self._settings.blocks)
        return self._dataset[1]

    def close(self) -> None:
        """Shut Ray down if `open` started it."""
        self._dataset = [], None
        gc.collect()
        self._ray.close()


def _failure(error: BaseException, path: Path) -> IobenchError:
    """Return the error that a task raised, which Ray wraps in errors of its own."""
    while (inner := getattr(error, "cause", None) or error.__cause__) is not None and inner is not error:
        error = inner
    if isinstance(error, IobenchError):
        return error.changed()
    return LoaderFailed(f"loader ray_data: {reason(error)}", kind="raised", path=path)
