"""StreamLoader: batches of a prepared dataset for a training loop."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from iobench import formats
from iobench.base.errors import InvalidSettings, IobenchError
from iobench.dataset.artifact_location import ArtifactLocation
from iobench.dataset.opener import Opener
from iobench.dataset.remote_dataset import dataset_at
from iobench.formats import Rows
from iobench.host.device import pick_device
from iobench.loading.batching import BLOCK_BYTES, WINDOW_BYTES, Batching
from iobench.loading.number_limits import check_setting
from iobench.stream.backend import failures_of
from iobench.stream.backend_selection import check_direct, select_backend
from iobench.stream.epoch_position import EpochPosition, RemainingBatches
from iobench.stream.options import StreamOptions, chosen_fields
from iobench.stream.pipeline import Pipeline, Transform
from iobench.stream.pipeline_keeper import PipelineKeeper
from iobench.stream.transfer import Tensors, transfer_to

STATE_VERSION = 2


class StreamLoader:
    """Iterable over batches of a prepared dataset as `dict[str, Tensor]`, read ahead by threads.

    A field whose samples differ in length is a `Ragged` of two tensors: values and offsets.

    A batch belongs to its consumer: its memory is reused only when the last tensor over it is gone. A
    completed epoch advances to the next one, which has another order, takes other parts of images with
    `crop=random`, and reuses the threads, the open files and the memory; they end with the loader or by
    `close`. An epoch that is left early ends them at once.

    Parameters
    ----------
    dataset : str or Path
        Folder made by `iobench prepare`, such as "data/mine", or the address of an uploaded dataset, such as
        "s3://bucket/prefix".
    format : str
        A variant prepared in it, such as "memmap" or "hdf5:chunk_bytes=0".
    batch_size : int
        Samples per batch.
    batch_tokens : int, optional
        For samples that differ in length, in place of `batch_size`: a batch takes samples until the next
        would exceed so many elements. Batches, and with them `len`, then differ from epoch to epoch. All
        ranks have the same number of batches.
    order : str
        "sequential", "random" or "block": blocks of `block_bytes` in random order, with samples shuffled
        within windows of `window_bytes`.
    seed : int
        Seed of the order, and of random parts of images.
    device : str or torch.device
        Device of the batches.
    fields : sequence of str, optional
        Names of the fields to read; all by default.
    drop_last : bool
        Drop a last batch that would be smaller.
    transform : callable, optional
        Maps a batch in host memory, a dict of tensors, to another one. Called in the reading threads.
    rank, world_size : int, optional
        The share of the samples; from torch.distributed if that is initialized. All ranks have the same
        number of batches, and each sample comes once.
    threads : int, optional
        Number of reading threads; by default chosen by format, processors and state of the page cache. If
        the rows are in memory, the consumer's thread is one of them while it waits.
    direct : bool, optional
        Read past the page cache (True) or through it (False); by default chosen likewise.
    in_flight, request_bytes, coalesce_bytes, retries : int
        Of an object store: most requests in flight, most bytes of a request, the largest gap between rows
        that is fetched along with them, and the times that a request that failed is sent again.
    object_cache : int, optional
        Of an object store: most bytes of its objects that are kept in `data_dir` for later epochs and
        processes, of each format; see `iobench.objects.piece_cache`. None are by default. A disk that becomes
        full is one RuntimeWarning, after which no more are kept.
    data_dir : str or Path
        Folder that caches manifest and indexes of a dataset in an object store.
    block_bytes, window_bytes : int
        Sizes for order "block".

    Raises
    ------
    InvalidSettings, InvalidOption, DeviceUnavailable, ManifestError, CorruptArtifact, LoaderFailed
        If a setting is invalid, or the device, the dataset or its object store is not available.
    CorruptArtifact
        During an epoch, if a file or an object changes.
    LoaderFailed
        During an epoch, if the disk or the store fails. Errors of `transform` are raised as they are.
    """

    def __init__(
        self,
        dataset: str | Path,
        *,
        format: str,
        batch_size: int = 256,
        batch_tokens: int | None = None,
        order: str = "sequential",
        seed: int = 0,
        device: str | torch.device = "cpu",
        fields: Sequence[str] | None = None,
        drop_last: bool = False,
        transform: Transform | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        threads: int | None = None,
        direct: bool | None = None,
        in_flight: int = StreamOptions.in_flight,
        request_bytes: int = StreamOptions.request_bytes,
        coalesce_bytes: int = StreamOptions.coalesce_bytes,
        retries: int = StreamOptions.retries,
        object_cache: int | None = None,
        data_dir: str | Path = Path("data"),
        block_bytes: int = BLOCK_BYTES,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        batching = Batching(order, batch_size, seed, block_bytes, window_bytes, drop_last, batch_tokens)
        self._options = StreamOptions(threads, direct, in_flight, request_bytes, coalesce_bytes, retries)
        if object_cache is not None:
            check_setting("object_cache", object_cache)
        self._manifest, self._object_cache = dataset_at(dataset, Path(data_dir)), object_cache
        self._fields = chosen_fields(self._manifest.schema, fields)
        self._variant = formats.parse(format).variant
        opener = self._opener()  # raises now instead of in the first epoch
        with self._place.hinting(), failures_of(opener.path):
            opener.check()
            check_direct(opener, self._fields, self._options)
        self._device = pick_device(str(device))
        self._transform = transform
        with self._place.hinting(), failures_of(opener.path):
            self._order = batching.order_over(opener, *_ranks(rank, world_size))
        self._order.length(self._samples, 0)
        self._window_bytes, self._consumed = window_bytes, 0
        self._start = self._position = self._epoch_start(0)
        self._keeper = PipelineKeeper()

    def __len__(self) -> int:
        """Return the number of batches in the epoch of this rank."""
        return self._order.length(self._samples, self._position.epoch)

    def __iter__(self) -> Generator[Tensors, None, None]:
        """Yield the batches of the epoch, or the remaining ones after `load_state_dict`."""
        position = self._position = self._start
        self._consumed, self._start = 0, self._epoch_start(position.epoch)
        batches, start = self._batches(position)
        with self._keeper.lend(self._open) as pipeline, closing(pipeline.run(batches, start)) as running:
            pipeline.set_epoch(position.epoch, self._order.seed)
            try:
                for batch in running:
                    self._consumed += 1
                    yield batch
            except IobenchError as error:
                failed = self._place.with_hint(error).changed()
            else:
                self._begin(self._epoch_start(position.epoch + 1))
                return
        raise failed  # a new error: the frames behind the first one would keep files mapped

    def close(self) -> None:
        """Close the files and release the memory that are kept between epochs; the next epoch opens them."""
        self._keeper.close()

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch, which determines its order."""
        check_setting("epoch", epoch)
        if epoch != self._position.epoch:
            self._begin(self._epoch_start(epoch))

    def state_dict(self) -> dict[str, Any]:
        """Return what remains of the epoch, the same on every rank after the same number of batches."""
        position = self._position.after(self._order, self._samples, self._consumed)
        remaining = [list(one) for one in position.remaining]
        return {**self._identity(), **vars(position), "remaining": remaining}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where all ranks of a state stopped, with any number of ranks and any batch size.

        Raises InvalidSettings if the state is of other data, order or seed, or if the remaining samples
        cannot be split into the same number of batches for each rank.
        """
        if not isinstance(state, dict):
            raise InvalidSettings(
                "not a state of a StreamLoader",
                kind="invalid-state",
                expected="a dict",
                found=type(state).__name__,
            )
        for name, own in self._identity().items():
            if state.get(name) != own:
                raise InvalidSettings(
                    f"the state is from a loader with another {name}",
                    kind="other-loader",
                    expected=repr(own),
                    found=repr(state.get(name)),
                )
        position = EpochPosition.from_state(state, self._order, self._samples)
        position.division(self._order, self._samples)
        self._begin(position)

    def _begin(self, position: EpochPosition) -> None:
        self._start, self._position, self._consumed = position, position, 0

    def _epoch_start(self, epoch: int) -> EpochPosition:
        return EpochPosition.start(self._order, self._samples, epoch)

    def _batches(self, position: EpochPosition) -> tuple[Sequence[Rows], int]:
        """Return batches, and the number of the first one that remains."""
        order, start = self._order, self._epoch_start(position.epoch)
        consumed = (self._samples - position.size) // (order.batch_size * order.world_size)
        length = order.length(self._samples, position.epoch)
        for number in (consumed, consumed + 1, length) if order.budget is None else (0,):
            if start.after(order, self._samples, number) == position:
                return order.batches(self._samples, position.epoch), number
        return RemainingBatches(order, self._samples, position), 0

    @property
    def _samples(self) -> int:
        return self._manifest.schema.samples

    @property
    def _place(self) -> ArtifactLocation:
        return self._manifest.location_of(self._variant)

    def _opener(self) -> Opener:
        opener = self._manifest.opener(self._variant)
        if not self._object_cache:
            return opener
        return opener.caching(self._manifest.object_cache(self._variant, self._object_cache))

    def _open(self) -> Pipeline:
        ordered = replace(self._opener(), random=self._order.kind != "sequential")
        with self._place.hinting():
            backend = select_backend(ordered, self._fields, self._options, self._order.batch_size)
        return Pipeline(backend, self._fields, self._order, transfer_to(self._device), self._transform)

    def _identity(self) -> dict[str, Any]:
        """Return the settings that must be equal for a position to mean the same batches."""
        order = self._order
        blocks = {"block_rows": order.block_rows, "window_bytes": self._window_bytes}
        return {
            "version": STATE_VERSION,
            "dataset": f"{self._manifest.content or 0:016x}",
            "samples": self._samples,
            "order": order.kind,
            "seed": order.seed,
            "drop_last": order.drop_last,
            **(blocks if order.kind == "block" else {}),
        }


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and world size: as given, else those of torch.distributed, else 0 and 1."""
    if (rank is None) != (world_size is None):
        raise InvalidSettings(
            "rank and world_size require each other", kind="missing-option", hint="give both or neither"
        )
    if rank is None or world_size is None:
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return 0, 1
        return distributed.get_rank(), distributed.get_world_size()
    return rank, world_size
