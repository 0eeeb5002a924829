"""SPDL's pipeline: threads that each read whole batches, in the order in which they were asked for.

As its documentation advises: the source yields keys, not data; one stage turns the keys of a batch into
the batch; a sink keeps a few of them. By default the library drops what a stage fails on and goes on: so
here a stage hands its error on, and the consumer raises it.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from iobench.formats import Rows, option
from iobench.loading.loaders._loader import CopyingLoader, Epochs, Job
from iobench.loading.order import LIMITS
from iobench.loading.tensors import tensors_of

if TYPE_CHECKING:
    from iobench.loading.host_to_device import HostBatch

MOST_KEPT = 65536


@dataclass(frozen=True)
class Spdl(CopyingLoader):
    """A pipeline of one stage between a source of rows and a sink."""

    name: ClassVar[str] = "spdl"
    summary: ClassVar[str] = "SPDL: a pipeline of threads that read whole batches"
    library: ClassVar[str] = "spdl"
    advised: ClassVar[str] = "keep_pipeline=yes"
    modules: ClassVar[tuple[str, ...]] = ("spdl",)
    extra: ClassVar[str] = "spdl"
    isolated: ClassVar[bool] = True

    threads: int | None = option(
        None, "threads that read; by default one per core", minimum=1, maximum=LIMITS["threads"][1]
    )
    sink: int = option(3, "batches that wait at the end of the pipeline", minimum=1, maximum=MOST_KEPT)
    keep_pipeline: bool = option(False, "one pipeline for all epochs: ending one takes the library 0.1 s")

    def open(self, job: Job) -> Epochs:
        """A reader that the threads share."""
        return SpdlEpochs(self, job)


class SpdlEpochs(Epochs):
    """A pipeline for each epoch, or one for all."""

    def __init__(self, loader: Spdl, job: Job) -> None:
        super().__init__(loader, job)
        self._settings = loader
        self._reader = job.opener()
        self._kept: Any = None
        self._asked: queue.SimpleQueue[Rows | None] = queue.SimpleQueue()

    @property
    def ahead(self) -> bool:
        """Its threads do."""
        return True

    def _epoch(self, asked: Sequence[Rows]) -> Iterator[HostBatch]:
        if self._settings.keep_pipeline:
            yield from self._through_kept(asked)
            return
        pipeline = self._made(asked)
        with pipeline.auto_stop():
            yield from map(_raised, pipeline.get_iterator())

    def _through_kept(self, asked: Sequence[Rows]) -> Iterator[HostBatch]:
        """An epoch through the pipeline of all epochs; left in the middle, that one ends with it."""
        if self._kept is None:
            self._kept = self._made(_told(self._asked))
            self._kept.start()
        for rows in asked:
            self._asked.put(rows)
        done = False
        try:
            for _ in asked:
                yield _raised(self._kept.get_item())
            done = True
        finally:
            if not done:
                self._stop()

    def _made(self, source: Any) -> Any:
        from spdl.pipeline import PipelineBuilder

        threads = self._settings.threads or len(os.sched_getaffinity(0))
        read = self.stages.timed_in_background(self._read)
        builder: Any = PipelineBuilder()
        stage = builder.add_source(source).pipe(read, concurrency=threads, output_order="input")
        return stage.add_sink(self._settings.sink).build(num_threads=threads)

    def _read(self, rows: Rows) -> Any:
        try:
            return self.pinned(tensors_of(self._reader.batch(rows)))
        except Exception as error:  # noqa: BLE001 - the pipeline would drop the batch and go on
            return error

    def _stop(self) -> None:
        """End the pipeline that was kept, with whatever waits in it."""
        if self._kept is not None:
            self._asked.put(None)  # the source's thread waits there, and would outlive the pipeline
            self._kept.stop()
            self._kept, self._asked = None, queue.SimpleQueue()

    def close(self) -> None:
        """End the pipeline, and close the reader."""
        self._stop()
        self._reader.close()


def _told(asked: queue.SimpleQueue[Rows | None]) -> Iterator[Rows]:
    """The rows of batches as they are told, until there are no more."""
    while (rows := asked.get()) is not None:
        yield rows


def _raised(item: Any) -> Any:
    """The item, if it is no error."""
    if isinstance(item, Exception):
        raise item
    return item
