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
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from iobench.base.errors import CorruptArtifact, IobenchError, LoaderFailed
from iobench.base.options import option
from iobench.base.text import reason
from iobench.contrib.formats.webdataset import suffixes_of
from iobench.contrib.loaders._shared import data_files, epoch_seeds, shuffle_buffer_option, tensor_of_column
from iobench.dataset.opener import Opener
from iobench.formats import Field, Reader, Schema, field_names
from iobench.loading.loaders import MAX_PREFETCH, MAX_WORKERS, CopyingLoader, Epochs, Job
from iobench.loading.tensors import HostBatch, tensors_of

MEMBERS = ["*.npy", "*.png", "*.jpg", "*.cls"]  # of archives, which Ray decodes to arrays and numbers


@dataclass(frozen=True)
class RaySource:
    """Ray Data's way to read an artifact."""

    paths: list[str]  # the artifact's files
    read: Callable[[list[str], int | None], Any]  # dataset of paths, in this number of blocks if given
    collate: Callable[[], Any]  # returns the function that converts batches to tensors


def _parquet(opener: Opener, reader: Reader) -> RaySource:
    import pyarrow.parquet as pq

    from iobench.contrib.formats.parquet import Parquet

    paths = [str(file) for file in Parquet().data_files(opener.path)]
    columns = _columns(opener.schema, pq.read_schema(paths[0]).names)

    def read(paths: list[str], blocks: int | None) -> Any:
        import ray.data

        dataset = ray.data.read_parquet(
            paths, override_num_blocks=blocks, partitioning=None, file_extensions=None
        )
        return dataset.select_columns(list(columns.values()))

    return RaySource(paths, read, lambda: _table_collate(opener.schema, columns))


def _lance(opener: Opener, reader: Reader) -> RaySource:
    from lance import dataset  # imported before by the reader, which set its log level

    path = str(opener.path)
    columns = _columns(opener.schema, dataset(path).schema.names)

    def read(paths: list[str], blocks: int | None) -> Any:
        import ray.data

        return ray.data.read_lance(paths[0], columns=list(columns.values()), override_num_blocks=blocks)

    return RaySource([path], read, lambda: _table_collate(opener.schema, columns))


def _archives(opener: Opener, reader: Reader) -> RaySource:
    members = MemberDecoder(opener.schema, opener.path)

    def read(paths: list[str], blocks: int | None) -> Any:
        import ray.data

        return ray.data.read_webdataset(
            paths, decoder=[True, members], suffixes=MEMBERS, override_num_blocks=blocks, file_extensions=None
        )

    return RaySource(data_files(reader), read, lambda: _stack_collate(opener.schema))


SOURCES = {"parquet": _parquet, "lance": _lance, "webdataset": _archives}  # by format


class MemberDecoder:
    """Returns the fields of a sample from its decoded members; is pickled for Ray's tasks."""

    def __init__(self, schema: Schema, path: Path) -> None:
        self._schema, self._path = schema, path

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields; CorruptArtifact if a member is missing."""
        suffixes = suffixes_of(sample, self._schema.fields)
        return {field.name: self._array(field, suffixes, sample) for field in self._schema.fields}

    def _array(self, field: Field, suffixes: Mapping[str, str], sample: Mapping[str, Any]) -> Any:
        if key := suffixes.get(field.name):
            return np.asarray(sample[key], field.dtype).reshape(field.shape)
        problem = f"no file of field {field.name} in sample {sample['__key__']}"
        raise CorruptArtifact(problem, "unknown-array", self._path)


def _columns(schema: Schema, names: list[str]) -> dict[str, str]:
    known = field_names(names)
    return {field.name: known[field.name] for field in schema.fields}


def _table_collate(schema: Schema, columns: Mapping[str, str]) -> Any:
    """Return a collate function that converts tables to tensors, in new memory."""
    from ray.data.collate_fn import ArrowBatchCollateFn

    class TableCollate(ArrowBatchCollateFn):  # type: ignore[misc]
        def __call__(self, batch: Any) -> HostBatch:
            both = ((field, batch[columns[field.name]].combine_chunks()) for field in schema.fields)
            return {field.name: tensor_of_column(column, field.shape) for field, column in both}

    return TableCollate()


def _stack_collate(schema: Schema) -> Any:
    """Return a collate function that converts columns with one array per row to tensors."""
    from ray.data.collate_fn import NumpyBatchCollateFn

    class StackCollate(NumpyBatchCollateFn):  # type: ignore[misc]
        def __call__(self, batch: Any) -> HostBatch:
            return tensors_of({field.name: _whole(batch[field.name], field) for field in schema.fields})

    return StackCollate()


def _whole(column: Any, field: Field) -> Any:
    array = np.stack(list(column)) if column.dtype == object else column
    return np.array(array.reshape(-1, *field.shape), field.dtype)


@dataclass(frozen=True)
class RayData(CopyingLoader):
    """An iterable-style loader: shuffles files, and rows within a buffer."""

    name: ClassVar[str] = "ray_data"
    summary: ClassVar[str] = "Ray Data: files read by tasks of Ray, rows shuffled within a buffer"
    library: ClassVar[str] = "ray"
    format_names: ClassVar[tuple[str, ...]] = tuple(SOURCES)
    recommended_options: ClassVar[str] = "prefetch_batches=4"
    modules: ClassVar[tuple[str, ...]] = ("ray", "pyarrow", "pandas")
    orders: ClassVar[tuple[str, ...]] = ("sequential", "random")
    iterable_style: ClassVar[bool] = True

    shuffle: str = option(
        "buffer",
        "random order; buffer: shuffles files, and rows within a buffer; all: random_shuffle of all rows",
        choices=("buffer", "all"),
    )
    shuffle_buffer: int = shuffle_buffer_option("rows in the buffer that random order shuffles")
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
        first, second = epoch_seeds(order, epoch)
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
