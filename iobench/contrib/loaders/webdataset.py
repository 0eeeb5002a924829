"""WebDataset's own pipeline over tar shards, each read from first to last member by one worker.

The pipeline follows WebDataset's documentation: shards are shuffled and split among workers, members grouped
to samples, samples shuffled within a buffer, decoded and batched in the worker, with a WebLoader around it.
Only arrays, images and numbers are decoded, by the library's own functions for them: its `.decode()` would
unpickle members with certain names. Shards at http:// are read by its own opener, curl. It has none for s3://:
as its users do, iobench gives it one.
"""

from __future__ import annotations

import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from iobench.base.errors import CorruptArtifact, IobenchError, LoaderFailed
from iobench.contrib.formats.shared.scaled_images import ScaledImages, extents_of
from iobench.contrib.formats.webdataset import suffixes_of
from iobench.contrib.loaders._shared import data_files, epoch_seeds, shuffle_buffer_option
from iobench.formats import Array, Field
from iobench.loading.collate import Collate
from iobench.loading.loaders import Epochs, Job, WorkerLoader
from iobench.loading.loaders.dataloader import started
from iobench.loading.tensors import HostBatch, tensor_of
from iobench.loading.user_errors import PortableError

if TYPE_CHECKING:
    from io import RawIOBase

    from iobench.contrib.formats.shared.scaled_images import ScaledDecoder
    from iobench.dataset.opener import Opener, RemoteOpener

IMAGES = ("png", "jpg", "jpeg")


@dataclass(frozen=True)
class WebDatasetLoader(WorkerLoader):
    """An iterable-style loader: shuffles shards, and samples within a buffer."""

    name: ClassVar[str] = "webdataset"
    summary: ClassVar[str] = "webdataset: sequential reads of tar shards, samples shuffled within a buffer"
    library: ClassVar[str] = "webdataset"
    format_names: ClassVar[tuple[str, ...]] = ("webdataset",)
    recommended_options: ClassVar[str] = "num_workers={cores}"
    modules: ClassVar[tuple[str, ...]] = ("webdataset",)
    orders: ClassVar[tuple[str, ...]] = ("sequential", "random")
    schemes: ClassVar[tuple[str, ...]] = ("http", "https", "s3")
    unpinned: ClassVar[tuple[str, ...]] = ("http", "https")
    iterable_style: ClassVar[bool] = True
    ragged: ClassVar[bool] = True

    shuffle_buffer: int = shuffle_buffer_option()

    def open(self, job: Job) -> Epochs:
        """Check the shards; an epoch opens them."""
        return WebDatasetEpochs(self, job)


class WebDatasetEpochs(Epochs):
    """A new pipeline and WebLoader for each epoch, shuffled with another seed."""

    def __init__(self, loader: WebDatasetLoader, job: Job) -> None:
        super().__init__(loader, job)
        self._settings = loader
        self._shards = _shards(job.opener)

    def _epoch(self, request: int) -> Iterator[HostBatch]:
        import webdataset as wds

        arguments = {"batch_size": None, **self._settings.worker_arguments}
        names = [field.name for field in self.opener.schema.fields]
        for tensors in started(lambda: wds.WebLoader(self._pipeline(request), **arguments)):
            yield dict(zip(names, tensors, strict=True))

    def _pipeline(self, epoch: int) -> Any:
        import webdataset as wds

        order, buffer = self.job.order, self._settings.shuffle_buffer
        first, second = epoch_seeds(order, epoch)
        random, remote = order.kind == "random", self.opener.remote
        return wds.DataPipeline(
            wds.SimpleShardList(self._shards),
            *([wds.shuffle(len(self._shards), seed=first)] if random else []),
            wds.split_by_worker,
            wds.tarfile_to_samples() if remote is None else RemoteShards(remote),
            *([wds.shuffle(buffer, initial=buffer, seed=second)] if random else []),
            wds.map(SampleDecoder(self.opener)),
            wds.batched(
                order.batch_size, collation_fn=partial(collate, self.job.collate, self.opener.schema.fields)
            ),
        )

    def close(self) -> None:
        """Do nothing: workers and files ended with their epoch."""


def _shards(opener: Opener) -> list[str]:
    """Return the files or addresses of the shards in order; LoaderFailed if curl is needed and missing."""
    if opener.remote is None:
        with opener() as reader:  # checks the files as every loader does
            return data_files(reader)
    files = opener.remote.files
    if files.url.startswith("http") and shutil.which("curl") is None:
        problem = "webdataset reads addresses by a program that is missing"
        raise LoaderFailed(problem, "no-curl", files.url, expected="curl", hint="install curl")
    return [files.address(name) for name in sorted(files.objects)]


@dataclass(frozen=True)
class RemoteShards:
    """A stage that turns addresses of shards into samples; can be pickled."""

    remote: RemoteOpener

    def __call__(self, shards: Iterator[Any]) -> Iterator[Any]:
        """Yield the samples; a LoaderFailed or CorruptArtifact in a PortableError if a shard fails."""
        import webdataset as wds
        from webdataset.gopen import gopen_schemes

        gopen_schemes["s3"] = self._opened
        try:
            yield from wds.tarfile_to_samples()(shards)
        except IobenchError as error:
            raise PortableError.wrap(error) from error
        except (OSError, tarfile.TarError) as error:
            status = re.search(r"exit (\d+)", str(error.args[0]))
            found = f"status {status[1]} of curl" if status else str(error.args[0]).partition(" @ ")[0]
            shard, problem = error.args[-1], "webdataset could not read the shard"
            failed = LoaderFailed(problem, "store-failed", shard, found=found)
            raise PortableError.wrap(failed) from error

    def _opened(self, address: str, mode: str, buffer_bytes: int) -> RawIOBase:
        return self.remote.file(address.removeprefix(f"{self.remote.files.url}/"))


def collate(way: Collate, fields: Sequence[Field], samples: Sequence[tuple[Array, ...]]) -> tuple[Any, ...]:
    """Collate samples, one array per field, to a batch."""
    from torch.utils.data import default_collate

    names = (field.name for field in fields)
    columns = {
        name: [*map(tensor_of, arrays)]
        for name, arrays in zip(names, zip(*samples, strict=True), strict=True)
    }
    return tuple(
        way.column(field.name, columns) if field.is_ragged else default_collate(columns[field.name])
        for field in fields
    )


class SampleDecoder:
    """Decodes the members of a sample to arrays, in the order of the fields; can be pickled."""

    def __init__(self, opener: Opener) -> None:
        self._fields, self._path, self._format = opener.schema.fields, opener.path, opener.format
        self._extents = {own: name for name, own in opener.schema.extents.items()}
        self._keys: list[str] = []
        self._decode: ScaledDecoder | None = None  # an image of any size; made where it is used

    def __call__(self, sample: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the arrays; a CorruptArtifact in a PortableError if a member is missing."""
        if not self._keys:
            self._keys = self._keys_of(sample)
            if isinstance(self._format, ScaledImages):
                self._decode = self._format.decode()
        both = zip(self._fields, self._keys, strict=True)
        return tuple(self._array(sample[key], field, key) for field, key in both)

    def _array(self, stored: bytes, field: Field, key: str) -> Array:
        of_size = field.name in self._extents
        image = key.rpartition(".")[2] in IMAGES and (len(field.shape) > 1 or of_size)
        if self._decode is None or not image:
            return _array(stored, field, key)
        try:
            if of_size:
                return np.array(extents_of(self._path, BytesIO(stored)), field.dtype)
            pixels = self._decode.decode(self._path, stored)
        except CorruptArtifact as error:
            raise PortableError.wrap(error.changed(problem=f"{key}: {error.problem}")) from error
        return pixels.reshape(-1, *field.inner) if field.is_ragged else pixels

    def _keys_of(self, sample: Mapping[str, Any]) -> list[str]:
        suffixes = suffixes_of(sample, self._fields)
        for name, image in self._extents.items():
            if image in suffixes:
                suffixes.setdefault(name, suffixes[image])
        for field in self._fields:
            if field.name not in suffixes:
                problem = f"no file of field {field.name} in sample {sample['__key__']}"
                raise PortableError.wrap(CorruptArtifact(problem, "unknown-array", self._path))
        return [suffixes[field.name] for field in self._fields]


def _array(stored: bytes, field: Field, key: str) -> Array:
    """Return the array of a .npy file, an image, a number in decimal digits, or raw bytes."""
    kind = key.rpartition(".")[2]
    if kind == "npy":
        from webdataset.autodecode import npy_loads

        loaded: Array = npy_loads(stored)
        return loaded
    if field.is_ragged:
        return np.frombuffer(bytearray(stored), field.dtype).reshape(-1, *field.inner)
    if kind in IMAGES and field.is_image:
        from webdataset.autodecode import ImageHandler

        return np.array(ImageHandler("l8" if len(field.shape) == 2 else "rgb8")(key, stored))
    array = np.frombuffer(stored, field.dtype) if len(stored) == field.sample_bytes else np.array(int(stored))
    return array.reshape(field.shape)
