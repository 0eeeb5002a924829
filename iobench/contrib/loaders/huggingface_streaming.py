"""Hugging Face `datasets` in streaming mode, from a disk, a web server or S3, under torch's DataLoader.

This follows its documentation: `load_dataset(…, streaming=True)`, which reads files through with fsspec, a
shuffle of the files and within a buffer, and a DataLoader whose workers have files each. Its torch format
turns numbers into int64 and float32, and iobench these into the fields' own dtypes. `via=arrow` takes a table
of each batch instead, whose columns are arrays already.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from iobench.base import interrupts
from iobench.base.errors import InvalidSettings, needing
from iobench.base.options import option
from iobench.contrib.loaders.huggingface import tensor_of_column
from iobench.contrib.loaders.webdataset import MAX_SHUFFLED
from iobench.formats import Field, field_names
from iobench.loading.loaders import Epochs, Job
from iobench.loading.loaders.dataloader import unwarned
from iobench.loading.loaders.workers import WorkerLoader
from iobench.objects.url import s3_options

if TYPE_CHECKING:
    from iobench.dataset.opener import Opener
    from iobench.loading.host_to_device import HostBatch

NARROWED = ("float64", "uint64")  # dtypes of which its torch format does not keep all values


@dataclass(frozen=True)
class HuggingFaceStreaming(WorkerLoader):
    """An iterable-style loader: shuffles files, and samples within a buffer."""

    name: ClassVar[str] = "huggingface_streaming"
    summary: ClassVar[str] = "Hugging Face datasets, streaming=True: files read through, shuffled in a buffer"
    library: ClassVar[str] = "datasets"
    format_names: ClassVar[tuple[str, ...]] = ("arrow", "parquet")
    modules: ClassVar[tuple[str, ...]] = ("datasets",)
    extra: ClassVar[str] = "huggingface"
    orders: ClassVar[tuple[str, ...]] = ("sequential", "random")
    schemes: ClassVar[tuple[str, ...]] = ("http", "https", "s3")
    unpinned: ClassVar[tuple[str, ...]] = schemes
    iterable_style: ClassVar[bool] = True
    isolated: ClassVar[bool] = True

    via: str = option(
        "torch",
        "torch: with_format('torch'), collated; arrow: a table per batch, converted to tensors by iobench",
        choices=("torch", "arrow"),
    )
    shuffle_buffer: int = option(
        1000, "samples in the buffer that random order shuffles", minimum=1, maximum=MAX_SHUFFLED
    )

    def open(self, job: Job) -> Epochs:
        """Open the dataset; InvalidSettings if its torch format would change values."""
        changed = [field.typed for field in job.opener.schema.fields if field.dtype in NARROWED]
        if changed and self.via == "torch":
            raise InvalidSettings(
                f"{self.name}: the torch format of datasets narrows {', '.join(changed)}",
                kind="unsupported-dtype",
                hint="set via=arrow",
            )
        return StreamingEpochs(self, job)


class StreamingEpochs(Epochs):
    """One dataset for all epochs, given the number of each."""

    def __init__(self, loader: HuggingFaceStreaming, job: Job) -> None:
        super().__init__(loader, job)
        self._settings = loader
        if job.opener.remote is None:
            with job.opener():  # checks the files as every loader does
                pass
        self._cache = tempfile.TemporaryDirectory(prefix="iobench-")  # of its lock files
        dataset = _streamed(job.opener, self._cache.name)
        columns = field_names(dataset.features)
        self._columns = {columns[field.name]: field for field in job.opener.schema.fields}
        dataset = dataset.select_columns([*self._columns]).with_format(loader.via)
        if job.order.kind == "random":
            dataset = dataset.shuffle(seed=job.order.seed % (1 << 32), buffer_size=loader.shuffle_buffer)
        self._dataset: Any = dataset if loader.via == "torch" else dataset.batch(job.order.batch_size)

    @property
    def prefetches(self) -> bool:
        """True if there are workers."""
        return self._settings.num_workers > 0

    def _epoch(self, request: int) -> Iterator[HostBatch]:
        from torch.utils.data import DataLoader

        settings = self._settings
        samples = settings.via == "torch"
        self._dataset.set_epoch(request)
        with interrupts.blocked(), unwarned():
            loader = DataLoader(
                self._dataset,
                batch_size=self.job.order.batch_size if samples else None,
                collate_fn=partial(_collated if samples else _tensors, self._columns),
                num_workers=settings.num_workers,
                prefetch_factor=settings.prefetch_factor,
                pin_memory=bool(settings.pin_memory),
            )
            batches = iter(loader)
        yield from batches

    def close(self) -> None:
        """Release the dataset and remove its lock files."""
        self._dataset = None
        gc.collect()
        self._cache.cleanup()


def _streamed(opener: Opener, cache: str) -> Any:
    """Return an artifact's files as an IterableDataset."""
    os.environ.setdefault("HF_UPDATE_DOWNLOAD_COUNTS", "0")  # it would tell the hub of each dataset
    from datasets import load_dataset

    storage: dict[str, Any] = {}
    if opener.remote is not None and opener.remote.files.url.startswith("s3://"):
        with needing("huggingface_streaming at s3://", "fsspec"):
            import_module("s3fs")  # as fsspec does
        storage = s3_options()
    return load_dataset(
        opener.format.name,
        data_files=_files(opener),
        split="train",
        streaming=True,
        storage_options=storage,
        cache_dir=cache,
    )


def _files(opener: Opener) -> list[str]:
    """Return the files or addresses of an artifact's data, in order."""
    if opener.remote is not None:
        files, suffix = opener.remote.files, f".{opener.format.name}"
        return [files.address(name) for name in sorted(files.objects) if name.endswith(suffix)]
    of_format = import_module(type(opener.format).__module__)
    return [str(file) for file in of_format.files_of(opener.path)]


def _collated(columns: Mapping[str, Field], samples: list[dict[str, Any]]) -> HostBatch:
    """Collate samples of tensors as torch does, and give them the dtypes of their fields."""
    import torch
    from torch.utils.data import default_collate

    batch = default_collate(samples)
    return {field.name: batch[column].to(getattr(torch, field.dtype)) for column, field in columns.items()}


def _tensors(columns: Mapping[str, Field], table: Any) -> HostBatch:
    """Convert a table of one row, whose columns are the lists of a batch."""
    lists = {column: table[column].combine_chunks().flatten() for column in columns}
    return {field.name: tensor_of_column(lists[column], field.shape) for column, field in columns.items()}
