"""WebDataset's own pipeline over tar shards, each read from its first to its last member by one worker.

As its documentation has pipelines: shards shuffled and dealt out to workers, members grouped to samples,
samples shuffled within a buffer, decoded and batched in the worker, a WebLoader around it. Nothing but
arrays, images and numbers is decoded, by the library's own functions for them: its `.decode()` would
unpickle members whose names ask for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from iobench.base.errors import (
    CorruptArtifact,
)
from iobench.formats import Field, Format, Schema, field_name, option
from iobench.host import interrupts
from iobench.loading.loaders._files import files_behind
from iobench.loading.loaders._loader import Epochs, Job
from iobench.loading.loaders._workers import WorkerLoader
from iobench.loading.loaders.dataloader import unwarned

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.loading.host_to_device import HostBatch

MOST_SHUFFLED = 1 << 30
IMAGES = ("png", "jpg", "jpeg")


@dataclass(frozen=True)
class WebDatasetLoader(WorkerLoader):
    """Its own order: shards at random, samples within a buffer; batches of one worker at a time."""

    name: ClassVar[str] = "webdataset"
    summary: ClassVar[str] = "webdataset: tar shards read through, samples shuffled within a buffer"
    library: ClassVar[str] = "webdataset"
    advised: ClassVar[str] = "num_workers={cores}"
    modules: ClassVar[tuple[str, ...]] = ("webdataset",)
    extra: ClassVar[str] = "webdataset"
    orders: ClassVar[tuple[str, ...]] = ("sequential", "random")
    own_order: ClassVar[bool] = True
    isolated: ClassVar[bool] = True

    shuffle_buffer: int = option(
        1000, "samples that random order shuffles among each other", minimum=1, maximum=MOST_SHUFFLED
    )

    def reads(self, format: Format) -> bool:
        """Tar shards."""
        return format.name == "webdataset"

    def open(self, job: Job) -> Epochs:
        """Nothing is opened until an epoch begins."""
        return WebDatasetEpochs(self, job)


class WebDatasetEpochs(Epochs):
    """A pipeline and a WebLoader for each epoch, shuffled by another seed."""

    def __init__(self, loader: WebDatasetLoader, job: Job) -> None:
        super().__init__(loader, job)
        self._settings = loader
        with job.opener() as reader:  # archives that hold something else are told as everywhere
            self._shards = files_behind(reader)

    @property
    def ahead(self) -> bool:
        """Its workers do."""
        return self._settings.num_workers > 0

    def _epoch(self, asked: int) -> Iterator[HostBatch]:
        import webdataset as wds

        settings = self._settings
        with interrupts.blocked(), unwarned():
            loader = wds.WebLoader(
                self._pipeline(asked),
                batch_size=None,
                num_workers=settings.num_workers,
                prefetch_factor=settings.prefetch_factor,
                pin_memory=bool(settings.pin_memory),
            )
            batches = iter(loader)
        names = [field.name for field in self.opener.schema.fields]
        for tensors in batches:
            yield dict(zip(names, tensors, strict=True))

    def _pipeline(self, epoch: int) -> Any:
        import webdataset as wds
        from torch.utils.data import default_collate

        order, buffer = self.job.order, self._settings.shuffle_buffer
        first, second = np.random.SeedSequence([order.seed, epoch]).generate_state(2).tolist()
        random = order.kind == "random"
        return wds.DataPipeline(
            wds.SimpleShardList(self._shards),
            *([wds.shuffle(len(self._shards), seed=first)] if random else []),
            wds.split_by_worker,
            wds.tarfile_to_samples(),
            *([wds.shuffle(buffer, initial=buffer, seed=second)] if random else []),
            wds.map(Decoded(self.opener.schema, self.opener.path)),
            wds.batched(order.batch_size, collation_fn=default_collate),
        )

    def close(self) -> None:
        """Workers and files went with their epoch."""


class Decoded:
    """The arrays of a sample's members, in the order of the fields; it can be pickled."""

    def __init__(self, schema: Schema, path: Path) -> None:
        self._fields, self._path = schema.fields, path
        self._keys: list[str] = []

    def __call__(self, sample: Mapping[str, Any]) -> tuple[Any, ...]:
        """CorruptArtifact where a member is not there."""
        if not self._keys:
            self._keys = [self._key_of(field, sample) for field in self._fields]
        both = zip(self._fields, self._keys, strict=True)
        return tuple(_array(sample[key], field, key) for field, key in both)

    def _key_of(self, field: Field, sample: Mapping[str, Any]) -> str:
        own = f"{field.name.lower()}.npy"
        for key in (own, *sample):
            if key in sample and (key == own or field_name(key.removesuffix(".npy")) == field.name):
                return key
        raise CorruptArtifact(f"{self._path}: no file of field {field.name} in sample {sample['__key__']}")


def _array(stored: bytes, field: Field, key: str) -> Any:
    """An array out of a .npy file, an image's pixels, a number in words, or raw bytes."""
    kind = key.rpartition(".")[2]
    if kind == "npy":
        from webdataset.autodecode import npy_loads

        return npy_loads(stored)
    if kind in IMAGES and field.is_image:
        from webdataset.autodecode import ImageHandler

        return np.array(ImageHandler("l8" if len(field.shape) == 2 else "rgb8")(key, stored))
    array = np.frombuffer(stored, field.dtype) if len(stored) == field.sample_bytes else np.array(int(stored))
    return array.reshape(field.shape)
