"""MosaicML's StreamingDataset over MDS shards, on a disk or in S3, under its StreamingDataLoader.

This follows MosaicML's documentation: the dataset is given the batch size and shuffles by itself, by default
with `py1e`, which moves samples within a range of shards. The library keeps state in shared memory and in
lock files of the temporary folder, under a number that it chooses, and leaves both behind when its process
ends. They are removed when the loader is closed.

From S3 it copies whole shards to a temporary folder, a new one for each epoch: otherwise only the first would
read from S3. With `cache_limit` the folder stays, and an epoch fills it before the first one that counts.
"""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from iobench.base.errors import InvalidSettings
from iobench.base.options import option
from iobench.formats import Field, field_names
from iobench.loading.collate import Collate
from iobench.loading.loaders import Epochs, Job, WorkerLoader
from iobench.loading.loaders.dataloader import started
from iobench.loading.loaders.sample_datasets import collated_as_read
from iobench.loading.tensors import HostBatch, silence_read_only_warning

SHARED_MEMORY = Path("/dev/shm")
OF_64_NODES = ("py1s", "py2s")  # shuffles that by default distribute samples to 64 nodes and repeat some


@dataclass(frozen=True)
class Mosaic(WorkerLoader):
    """An iterable-style loader over a local folder, of which it copies nothing, or over S3."""

    name: ClassVar[str] = "mosaic"
    summary: ClassVar[str] = "mosaicml-streaming: StreamingDataset over MDS shards"
    library: ClassVar[str] = "mosaicml-streaming"
    format_names: ClassVar[tuple[str, ...]] = ("mds",)
    recommended_options: ClassVar[str] = "num_workers={cores}"
    modules: ClassVar[tuple[str, ...]] = ("streaming",)
    schemes: ClassVar[tuple[str, ...]] = ("s3",)
    unpinned: ClassVar[tuple[str, ...]] = schemes
    orders: ClassVar[tuple[str, ...]] = ("sequential", "random")
    iterable_style: ClassVar[bool] = True
    stateful: ClassVar[bool] = True
    ragged: ClassVar[bool] = True

    shuffle_algo: str = option(
        "py1e",
        "algorithm of random order; naive: shuffles all samples",
        choices=("py1e", "py1br", *OF_64_NODES, "naive"),
    )

    cache_limit: int | None = option(
        None,
        "S3: most bytes of copies that later epochs read, which are measured; by default all is read from S3",
        minimum=1,
        maximum=1 << 50,
        unit="bytes",
    )

    def open(self, job: Job) -> Epochs:
        """Open the dataset with its index; InvalidSettings for a limit on a disk, where it has no copies."""
        if self.cache_limit is not None and job.opener.remote is None:
            problem = "mosaic: cache_limit with a dataset on a disk"
            raise InvalidSettings(problem, "conflicting-options", hint="leave it out")
        return MosaicEpochs(self, job)


def collate(way: Collate, ragged: Mapping[str, Field], samples: list[dict[str, Any]]) -> Any:
    """Collate samples to a batch; images become arrays of pixels, as a user's transform would make them.

    `ragged` are the fields of columns of bytes that differ in length.
    """
    from torch.utils.data import default_collate

    images = [name for name, value in samples[0].items() if hasattr(value, "getbands")]  # Pillow images
    if images:
        samples = [sample | {name: np.array(sample[name]) for name in images} for sample in samples]
    return collated_as_read(way, ragged, samples) if ragged else default_collate(samples)


class MosaicEpochs(Epochs):
    """One dataset for all epochs, given the number of each."""

    prefetches = True  # its workers and threads read ahead

    def __init__(self, loader: Mosaic, job: Job) -> None:
        super().__init__(loader, job)
        self._settings = loader
        silence_read_only_warning()  # it passes views of shards to torch, which copies them
        if job.opener.remote is None:
            job.opener().close()  # checks the files as every loader does
        self._dataset: Any = None
        self._open()
        if loader.cache_limit is not None:
            for _ in self._epoch(0):
                pass

    def _open(self) -> None:
        from streaming import StreamingDataset

        order, algorithm, remote = self.job.order, self._settings.shuffle_algo, self.opener.remote
        self._local = tempfile.mkdtemp(prefix="iobench-") if remote else str(self.opener.path)
        try:
            self._dataset = StreamingDataset(
                remote=remote.files.url if remote else None,
                local=self._local,
                batch_size=order.batch_size,
                shuffle=order.kind == "random",
                shuffle_algo=algorithm,
                num_canonical_nodes=1 if algorithm in OF_64_NODES else None,
                shuffle_seed=order.seed % (1 << 32),
                cache_limit=self._settings.cache_limit,
            )
        except BaseException:
            self.close()
            raise

    def _epoch(self, request: int) -> Iterator[HostBatch]:
        from streaming import StreamingDataLoader

        settings = self._settings
        copied = self.opener.remote is not None and self._dataset.next_epoch  # by an epoch before
        if copied and settings.cache_limit is None:
            self.close()
            self._open()
        self._dataset.next_epoch = request
        arguments = {
            "batch_size": self.job.order.batch_size,
            "collate_fn": partial(collate, self.job.collate, self._ragged()),
            **settings.worker_arguments,
        }
        yield from map(
            self._typed, started(lambda: self.resumable(StreamingDataLoader(self._dataset, **arguments)))
        )

    def _ragged(self) -> dict[str, Field]:
        columns = field_names(self._dataset.shards[0].column_names)
        return {columns[field.name]: field for field in self.opener.schema.ragged}

    def _typed(self, batch: HostBatch) -> HostBatch:
        """Return the fields by name; MDS stores bools as bytes."""
        import torch

        named = {field: batch[column] for field, column in field_names(batch).items()}
        return {
            f.name: named[f.name].view(torch.bool) if f.dtype == "bool" and not f.is_ragged else named[f.name]
            for f in self.opener.schema.fields
        }

    def close(self) -> None:
        """Close the files, and remove copies and the library's shared memory and lock files."""
        if running := getattr(self._dataset, "_iterator", None):  # threads of an epoch that was left early
            running.non_blocking_exit()
            self._dataset._executor.shutdown()
        if self.opener.remote is not None:
            shutil.rmtree(self._local, ignore_errors=True)
        if self._dataset is None:
            return
        prefix, self._dataset = f"{self._dataset._shm_prefix_int:06}_", None
        gc.collect()
        for folder in (SHARED_MEMORY, Path(tempfile.gettempdir())):
            for file in folder.glob(f"{prefix}*"):
                file.unlink(missing_ok=True)
