"""SPDL's pipeline: threads that each read whole batches, returned in the requested order.

This follows SPDL's documentation: the source yields keys, not data; one stage reads the batch of these keys;
a sink buffers a few batches. By default the library drops an item on which a stage fails and continues.
Here the stage passes its error on instead, and the consumer raises it.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from iobench.base.options import LIMITS, option
from iobench.formats import Rows
from iobench.loading.loaders import CopyingLoader, Epochs, Job
from iobench.loading.tensors import HostBatch, tensors_of

MAX_SINK = 65536


@dataclass(frozen=True)
class Spdl(CopyingLoader):
    """A map-style loader: a pipeline with one stage between a source of rows and a sink."""

    name: ClassVar[str] = "spdl"
    summary: ClassVar[str] = "SPDL: a pipeline of threads that read whole batches"
    library: ClassVar[str] = "spdl"
    recommended_options: ClassVar[str] = "keep_pipeline=yes"
    modules: ClassVar[tuple[str, ...]] = ("spdl",)
    ragged: ClassVar[bool] = True

    threads: int | None = option(
        None, "reading threads; by default one for each core", minimum=1, maximum=LIMITS["threads"][1]
    )
    sink: int = option(3, "batches buffered at the end of the pipeline", minimum=1, maximum=MAX_SINK)
    keep_pipeline: bool = option(False, "one pipeline for all epochs; the library takes 0.1 s to end one")

    @property
    def read_ahead(self) -> int:
        """The sink, and what the threads read and hold."""
        return self.sink + 2 * (self.threads or len(os.sched_getaffinity(0)))

    def open(self, job: Job) -> Epochs:
        """Open a reader, which the threads share."""
        return SpdlEpochs(self, job)


class SpdlEpochs(Epochs):
    """A new pipeline for each epoch, or one for all epochs."""

    prefetches = True  # its threads read ahead

    def __init__(self, loader: Spdl, job: Job) -> None:
        super().__init__(loader, job)
        self._settings = loader
        self._reader = job.opener()
        self._pipeline: Any = None
        self._requests: queue.SimpleQueue[Rows | None] = queue.SimpleQueue()

    def _epoch(self, request: Sequence[Rows]) -> Iterator[HostBatch]:
        if self._settings.keep_pipeline:
            yield from self._through_pipeline(request)
            return
        pipeline = self._build(request)
        with pipeline.auto_stop():
            yield from map(_raise_errors, pipeline.get_iterator())

    def _through_pipeline(self, request: Sequence[Rows]) -> Iterator[HostBatch]:
        """Read an epoch through the pipeline of all epochs; it ends if the epoch is abandoned."""
        if self._pipeline is None:
            self._pipeline = self._build(_take_all(self._requests))
            self._pipeline.start()
        for rows in request:
            self._requests.put(rows)
        done = False
        try:
            for _ in request:
                yield _raise_errors(self._pipeline.get_item())
            done = True
        finally:
            if not done:
                self._stop()

    def _build(self, source: Any) -> Any:
        from spdl.pipeline import PipelineBuilder

        threads = self._settings.threads or len(os.sched_getaffinity(0))
        read = self.stages.timed_in_background(self._read)
        builder: Any = PipelineBuilder()
        stage = builder.add_source(source).pipe(read, concurrency=threads, output_order="input")
        return stage.add_sink(self._settings.sink).build(num_threads=threads)

    def _read(self, rows: Rows) -> Any:
        try:
            return self.pinned(self.job.collate(tensors_of(self._reader.batch(rows))))
        except Exception as error:  # noqa: BLE001 - the pipeline would drop the batch and continue
            return error

    def _stop(self) -> None:
        """End the pipeline of all epochs, and discard the batches in it."""
        if self._pipeline is not None:
            self._requests.put(None)  # ends the source's thread, which would otherwise block for ever
            self._pipeline.stop()
            self._pipeline, self._requests = None, queue.SimpleQueue()

    def close(self) -> None:
        """End the pipeline and close the reader."""
        self._stop()
        self._reader.close()


def _take_all(requests: queue.SimpleQueue[Rows | None]) -> Iterator[Rows]:
    while (rows := requests.get()) is not None:
        yield rows


def _raise_errors(item: Any) -> Any:
    if isinstance(item, Exception):
        raise item
    return item
