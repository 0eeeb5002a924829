"""StreamLoader: batches of a prepared dataset for a training loop."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from iobench import formats
from iobench.base.errors import InvalidSettings, IobenchError
from iobench.base.options import check_setting
from iobench.dataset.artifact_location import ArtifactLocation
from iobench.dataset.opener import Opener
from iobench.dataset.remote_dataset import dataset_at
from iobench.formats import Ragged, Rows
from iobench.host.device import pick_device
from iobench.host.rank_info import ProcessRank, given_rank, has_process_group, process_rank
from iobench.loading.batching import Batching
from iobench.loading.order import Order
from iobench.stream.backend import failures_of
from iobench.stream.backend_selection import check_direct, open_delivery
from iobench.stream.delivery import BatchDelivery, DeliveryKeeper
from iobench.stream.epoch_position import EpochPosition, RemainingBatches
from iobench.stream.options import DEFAULTS, StreamOptions, chosen_fields
from iobench.stream.pipeline import Transform
from iobench.stream.transfer import Tensors, transfer_to

STATE_VERSION = 2
CHECK_EVERY = 32  # batches, which take 20 µs each or more: to see a new process group takes 1 µs


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
    order : str
        "sequential", "random" or "block": blocks of `options.block_bytes` in random order, with samples
        shuffled within windows of `options.window_bytes`.
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
        The share of the samples. All ranks have the same number of batches, and each sample comes once. If
        they are not given, they are looked up when they are needed (`len`, `iter`, a state), and again for
        each epoch: those of the process group, else of torchrun's, Lightning's or Slurm's variables.
    options : StreamOptions
        Threads, views or copies, batches by tokens, and the rest.

    Raises
    ------
    InvalidSettings, InvalidOption, DeviceUnavailable, ManifestError, CorruptArtifact, LoaderFailed
        If a setting is invalid, or the device, the dataset or its object store is not available.
    InvalidSettings
        When the rank is looked up, if what says it is contradictory; during an epoch, if it changes.
    CorruptArtifact
        During an epoch or at its end, if a file or an object has changed since the epoch began; before the
        next one begins if the epoch was left.
    LoaderFailed
        During an epoch, if the disk or the store fails. Errors of `transform` are raised as they are.
    """

    def __init__(
        self,
        dataset: str | Path,
        *,
        format: str,
        batch_size: int = 256,
        order: str = "sequential",
        seed: int = 0,
        device: str | torch.device = "cpu",
        fields: Sequence[str] | None = None,
        drop_last: bool = False,
        transform: Transform | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        options: StreamOptions = DEFAULTS,
    ) -> None:
        sizes = options.block_bytes, options.window_bytes
        batching = Batching(order, batch_size, seed, *sizes, drop_last, options.batch_tokens)
        self._options, self._manifest = options, dataset_at(dataset, Path(options.data_dir))
        self._fields = chosen_fields(self._manifest.schema, fields)
        self._variant = formats.parse(format).variant
        opener = self._opener()  # raises now instead of in the first epoch
        with self._place.hinting(), failures_of(opener.path):
            opener.check()
            check_direct(opener, self._fields, self._options)
        self._device, self._transform = pick_device(str(device)), transform
        with self._place.hinting(), failures_of(opener.path):
            self._order = batching.order_over(opener)  # of the rank that was looked up last
        self._given = given_rank(rank, world_size)
        self._epoch, self._consumed = 0, 0
        # where the consumed batches began, and where the next loop begins; None: at the epoch's start
        self._begun: EpochPosition | None = None
        self._rest: EpochPosition | None = None
        self._keeper = DeliveryKeeper()
        self._changed: IobenchError | None = None  # of files in an epoch that was left
        if self._given:
            self._ranked().length(self._samples, 0)

    def __len__(self) -> int:
        """Return the number of batches in the epoch of this rank."""
        return self._ranked().length(self._samples, self._epoch)

    def __iter__(self) -> Generator[Tensors, None, None]:
        """Yield the batches of the epoch, or the remaining ones after `load_state_dict`."""
        changed, self._changed = self._changed, None
        if changed is not None:
            raise changed
        self._order, grouped = self._ranked(warns=True), has_process_group()
        position = self._begun = self._rest or self._epoch_start(self._order)
        self._consumed, self._rest = 0, None
        batches, start = self._batches(position)
        with self._keeper.lend(self._open) as delivery, closing(delivery.run(batches, start)) as running:
            delivery.set_epoch(position.epoch, self._order.seed)
            try:
                for batch in running:
                    self._consumed += 1
                    yield self._shaped(batch)
                    if self._consumed % CHECK_EVERY == 1 and has_process_group() != grouped:
                        self._unchanged()
                self._unchanged()
                delivery.check_files()
            except IobenchError as error:
                failed = self._place.with_hint(error).changed()
            except BaseException:  # the loop was left, or interrupted
                self._changed = self._change_in(delivery)
                raise
            else:
                self._begin(position.epoch + 1)
                return
        raise failed  # a new error: the frames behind the first one would keep files mapped

    def _change_in(self, delivery: BatchDelivery) -> IobenchError | None:
        """Return the error that the next epoch raises if files changed in one that ends now."""
        try:
            delivery.check_files()
        except IobenchError as error:
            return self._place.with_hint(error).changed()
        return None

    def __getitem__(self, row: object) -> Any:
        """Refuse to be the dataset of a DataLoader, whose place it takes."""
        problem = "a StreamLoader is no dataset: it takes the place of torch's DataLoader"
        hint = "iterate over it: it yields batches on the device"
        raise InvalidSettings(problem, "not-a-dataset", hint=hint)

    def close(self) -> None:
        """Close the files and release the memory that are kept between epochs; the next epoch opens them."""
        self._keeper.close()

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch, which determines its order."""
        check_setting("epoch", epoch)
        if epoch != self._epoch:
            self._begin(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return what remains of the epoch, the same on every rank after the same number of batches."""
        order = self._unchanged()
        position = (self._begun or self._epoch_start(order)).after(order, self._samples, self._consumed)
        remaining = [list(one) for one in position.remaining]
        return {**self._identity(), **vars(position), "remaining": remaining}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where all ranks of a state stopped, with any number of ranks and any batch size.

        Raises InvalidSettings if the state is of other data, order or seed, or if the remaining samples
        cannot be split into the same number of batches for each rank.
        """
        if not isinstance(state, dict):
            problem = "not a state of a StreamLoader"
            raise InvalidSettings(problem, "invalid-state", expected="a dict", found=type(state).__name__)
        for name, own in self._identity().items():
            if state.get(name) != own:
                problem, expected = f"the state is from a loader with another {name}", repr(own)
                raise InvalidSettings(problem, "other-loader", expected=expected, found=repr(state.get(name)))
        order = self._ranked()
        position = EpochPosition.from_state(state, order, self._samples)
        position.division(order, self._samples)
        self._begin(position.epoch, position)

    def _begin(self, epoch: int, rest: EpochPosition | None = None) -> None:
        self._epoch, self._begun, self._rest, self._consumed = epoch, rest, rest, 0

    def _ranked(self, warns: bool = False) -> Order:
        """Return the order of this rank, which is looked up unless it was given."""
        own = self._given or process_rank()
        if warns and own.by_slurm and own.world_size > 1:
            warnings.warn(
                f"StreamLoader reads the share of {own}: if the tasks are not of one training, give rank=0, "
                "world_size=1",
                RuntimeWarning,
                stacklevel=3,
            )
        return replace(self._order, rank=own.rank, world_size=own.world_size)

    def _unchanged(self) -> Order:
        """Return the order of this rank; InvalidSettings if it is another one than the consumed batches'."""
        order = self._ranked()
        now, then = (ProcessRank(one.rank, one.world_size) for one in (order, self._order))
        if self._consumed and now != then:
            problem = "rank in the middle of an epoch"
            expected = f"rank {then.rank} of {then.world_size}, as when it began"
            found = f"{now.rank} of {now.world_size}"
            hint = "begin the epoch when the process group exists, or give rank and world_size"
            raise InvalidSettings(problem, "rank-changed", expected=expected, found=found, hint=hint)
        return order

    def _epoch_start(self, order: Order) -> EpochPosition:
        return EpochPosition.start(order, self._samples, self._epoch)

    def _batches(self, position: EpochPosition) -> tuple[Sequence[Rows], int]:
        """Return batches, and the number of the first one that remains."""
        order = self._order
        start = EpochPosition.start(order, self._samples, position.epoch)
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
        if not (most := self._options.object_cache):
            return opener
        return opener.caching(self._manifest.object_cache(self._variant, most))

    def _open(self) -> BatchDelivery:
        ordered = replace(self._opener(), random=self._order.kind != "sequential")
        transfer = transfer_to(self._device)
        with self._place.hinting():
            return open_delivery(
                ordered,
                self._fields,
                self._options,
                self._order,
                transfer,
                self._transform,
                self._options.copy,
            )

    def _identity(self) -> dict[str, Any]:
        """Return the settings that must be equal for a position to mean the same batches."""
        order = self._order
        blocks = {"block_rows": order.block_rows, "window_bytes": self._options.window_bytes}
        return {
            "version": STATE_VERSION,
            "dataset": f"{self._manifest.content or 0:016x}",
            "samples": self._samples,
            "order": order.kind,
            "seed": order.seed,
            "drop_last": order.drop_last,
            **(blocks if order.kind == "block" else {}),
        }

    def _shaped(self, batch: Tensors) -> Any:
        """Return the batch as it is, or nested by the names that its fields have outside."""
        if not self._options.nested:
            return batch
        from tensordict import TensorDict

        names, size = self._manifest.source.get("renamed", {}), len(next(iter(batch.values())))
        tensors = {n: one.nested() if isinstance(one, Ragged) else one for n, one in batch.items()}
        return TensorDict({names.get(n, n): one for n, one in tensors.items()}, [size]).unflatten_keys("/")
