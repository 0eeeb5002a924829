"""LitData's StreamingDataset over chunks, on a disk or in S3, under its StreamingDataLoader.

This follows LitData's documentation. Random order is LitData's own: chunks in random order, and samples
shuffled within a window of a chunk (`shuffle_window`). Local chunks are memory-mapped in place; if the
library would copy them into its own cache, the loader raises LoaderFailed.

From S3 it copies whole chunks to a cache, a new one for each epoch: otherwise only the first would read from
S3. Where obstore is installed, it fetches them with that.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from iobench.base.errors import LoaderFailed
from iobench.base.options import option
from iobench.contrib.formats.litdata import TokenChunks
from iobench.formats import Field, field_names
from iobench.loading.collate import Collate
from iobench.loading.loaders import Epochs, Job, WorkerLoader
from iobench.loading.loaders.dataloader import started
from iobench.loading.loaders.sample_datasets import collated_as_read
from iobench.loading.tensors import HostBatch, silence_read_only_warning
from iobench.objects.url import s3_endpoint, s3_region


@dataclass(frozen=True)
class LitDataLoader(WorkerLoader):
    """An iterable-style loader over a local folder, of which it copies nothing, or over S3."""

    name: ClassVar[str] = "litdata"
    summary: ClassVar[str] = "litdata: StreamingDataset over chunks"
    library: ClassVar[str] = "litdata"
    format_names: ClassVar[tuple[str, ...]] = ("litdata",)
    recommended_options: ClassVar[str] = "num_workers={cores}"
    modules: ClassVar[tuple[str, ...]] = ("litdata",)
    schemes: ClassVar[tuple[str, ...]] = ("s3",)
    unpinned: ClassVar[tuple[str, ...]] = schemes
    orders: ClassVar[tuple[str, ...]] = ("sequential", "random")
    iterable_style: ClassVar[bool] = True
    stateful: ClassVar[bool] = True
    ragged: ClassVar[bool] = True

    shuffle_window: int | None = option(
        None,
        "samples in a window that random order shuffles; by default litdata's 256, 0 for a whole chunk",
        minimum=0,
        maximum=1 << 30,
    )

    def open(self, job: Job) -> Epochs:
        """Open the dataset with its index."""
        return LitDataEpochs(self, job)


class LitDataEpochs(Epochs):
    """One dataset and one loader for all epochs, given the number of each; in S3 new ones for each."""

    def __init__(self, loader: LitDataLoader, job: Job) -> None:
        super().__init__(loader, job)
        self._of_tokens = False  # at an address litdata refuses chunks of tokens
        if job.opener.remote is None:
            job.opener().close()  # checks the files as every loader does
            self._of_tokens = TokenChunks.read(job.opener.path) is not None
        silence_read_only_warning()
        os.environ["LITDATA_DISABLE_VERSION_CHECK"] = "1"  # the check asks PyPI
        self._settings = loader
        self._open()

    def _open(self) -> None:
        from litdata import StreamingDataset
        from litdata.streaming.item_loader import PyTreeLoader, TokensLoader

        order, remote = self.job.order, self.opener.remote
        self._loader: Any = None
        self._items: Any = (
            TokensLoader(*self.opener.schema.fields[0].shape) if self._of_tokens else PyTreeLoader()
        )
        self._cache = tempfile.TemporaryDirectory(prefix="iobench-") if remote else None
        self._dataset: Any = StreamingDataset(
            input_dir=remote.files.url if remote else str(self.opener.path),
            cache_dir=self._cache and self._cache.name,
            item_loader=self._items,
            shuffle=order.kind == "random",
            drop_last=False,
            seed=order.seed % (1 << 31),
            storage_options={"endpoint_url": s3_endpoint(), "region_name": s3_region()} if remote else None,
            item_shuffle_window=self._settings.shuffle_window,
        )
        if remote:
            allow_http()
        elif not getattr(self._dataset.posix_fast, "in_place", False):
            problem = "loader litdata: litdata would copy the chunks into its own cache"
            expected, hint = "a file system that litdata takes for local", "put the dataset on a local disk"
            raise LoaderFailed(problem, "not-local", self.opener.path, expected=expected, hint=hint)

    def _epoch(self, request: int) -> Iterator[HostBatch]:
        if self._cache and self._loader:  # it has copies of an epoch before
            self.close()
            self._open()
        names = [field.name for field in self.opener.schema.fields]
        for batch in started(partial(self._loader_of, request)):
            leaves = {names[0]: batch} if self._of_tokens else dict(_leaves(batch))
            named = field_names(leaves)
            yield {name: leaves[named[name]] for name in names}

    def _loader_of(self, epoch: int) -> Any:
        self._loader = self._loader or self._build()
        self._loader.current_epoch = epoch  # it increments this when an epoch begins
        return self.resumable(self._loader)

    def _build(self) -> Any:
        from litdata import StreamingDataLoader

        settings = self._settings
        chosen: dict[str, Any] = {}
        if settings.prefetch_factor is not None:
            chosen["prefetch_factor"] = settings.prefetch_factor
        if self._cache and settings.num_workers:  # obstore cannot be used in a fork of a process that used it
            chosen |= {"multiprocessing_context": "spawn", "worker_init_fn": allow_http}
        if ragged := self.opener.schema.ragged:
            chosen["collate_fn"] = partial(collate, self.job.collate, ragged)
        return StreamingDataLoader(
            self._dataset,
            batch_size=self.job.order.batch_size,
            num_workers=settings.num_workers,
            pin_memory=bool(settings.pin_memory),
            **chosen,
        )

    def close(self) -> None:
        """Unmap the chunks, which the library's caches refer to, and remove copies."""
        self._loader = self._dataset = None
        self._items.close(0)
        gc.collect()
        if self._cache:
            self._cache.cleanup()


def allow_http(worker: int = 0) -> None:
    """Let obstore fetch chunks from an endpoint at http://, for which litdata has no option."""
    from litdata.streaming import downloader

    if (s3_endpoint() or "").startswith("http://"):
        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True


def collate(way: Collate, ragged: Sequence[Field], samples: Sequence[Any]) -> dict[str, Any]:
    """Collate samples that differ in length to a batch of leaves by name."""
    leaves = [dict(_leaves(sample)) for sample in samples]
    leaf_of = field_names(leaves[0])
    fields = {leaf_of[field.name]: field for field in ragged}
    return collated_as_read(way, fields, leaves)


def _leaves(batch: Any, parent: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the own name and the tensor of each leaf of a batch; keys of nested dicts are joined."""
    if isinstance(batch, (dict, list, tuple)):
        for key, inner in batch.items() if isinstance(batch, dict) else enumerate(batch):
            yield from _leaves(inner, f"{parent}/{key}" if parent else str(key))
    else:
        yield parent or "sample", batch
