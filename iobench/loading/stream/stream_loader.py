"""StreamLoader: batches of a prepared dataset for a training loop."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from iobench import formats
from iobench.base.errors import (
    InvalidSettings,
    IobenchError,
)
from iobench.dataset.artifact_location import ArtifactLocation
from iobench.dataset.manifest import Manifest
from iobench.formats import Schema
from iobench.host.device import pick_device
from iobench.loading.order import BLOCK_BYTES, WINDOW_BYTES, Batching, check_setting
from iobench.loading.stream.backend import failures_of
from iobench.loading.stream.backend_selection import check_placements, select_backend
from iobench.loading.stream.pipeline import Pipeline, Transform
from iobench.loading.stream.transfer import Tensors, transfer_to

STATE_VERSION = 1


class StreamLoader:
    """Batches as `dict[str, Tensor]` on a device, read by threads ahead of the loop that takes them.

    A batch belongs to whoever holds it: its memory is used again only when the last tensor over it
    is gone. Each epoch opens the files and closes them, whichever way it ends, and its threads end
    with it. An epoch that has run to its end moves on to the next one, which has another order.

    `dataset`: a folder that `iobench prepare` made, such as "data/mine".
    `format`: a variant that is prepared in it, such as "memmap" or "hdf5:chunk_bytes=0".
    `order`: "sequential", "random", or "block": blocks of `block_bytes` in random order, shuffled
    within windows of `window_bytes`.
    `fields`: names of those wanted; all by default.
    `transform`: takes a batch in host memory to another one; called in the reading threads.
    `rank`, `world_size`: which part of the samples; from torch.distributed where it is initialised.
    Every rank has the same number of batches, and every sample comes once.
    `threads`, `direct`: how many read, and whether past the page cache; by default what suits the
    format, the processors and the state of the cache.

    InvalidSettings, DeviceUnavailable, ManifestError or CorruptArtifact where it cannot be had.
    While it runs: CorruptArtifact where a file changes, LoaderFailed where the disk fails, and
    what `transform` raises.
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
        threads: int | None = None,
        direct: bool | None = None,
        block_bytes: int = BLOCK_BYTES,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        batching = Batching(order, batch_size, seed, block_bytes, window_bytes, drop_last)
        if threads is not None:
            check_setting("threads", threads)
        self._manifest = Manifest.load(Path(dataset))
        self._variant = formats.parse(format).variant
        opener = self._manifest.opener(self._variant)  # says now what would be wrong later
        with self._place.hinting(), failures_of(opener.path):
            opener.check()
        if direct:
            with self._place.hinting(), failures_of(opener.path), opener() as reader:
                check_placements(reader.placement(), _chosen(opener.schema, fields), self._variant)
        self._device = pick_device(str(device))
        self._fields = _chosen(self._manifest.schema, fields)
        self._transform, self._threads, self._direct = transform, threads, direct
        self._order = batching.row_order(self._manifest.schema, *_ranks(rank, world_size))
        self._order.length(self._samples)
        self._epoch = self._position = self._resume = 0

    def __len__(self) -> int:
        """Batches in an epoch of this rank."""
        return self._order.length(self._samples)

    def __iter__(self) -> Generator[Tensors, None, None]:
        """The batches of the epoch, or what is left of it after `load_state_dict`."""
        start, self._resume = self._resume, 0
        self._position = start
        batches = self._order.batches(self._samples, self._epoch)
        with closing(self._open()) as pipeline, closing(pipeline.run(batches, start)) as running:
            try:
                for batch in running:
                    self._position += 1
                    yield batch
            except IobenchError as error:
                failed = self._place.with_hint(error).changed()
            else:
                self._epoch, self._position = self._epoch + 1, 0
                return
        raise failed  # anew: the frames behind the first error would keep files mapped

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next loop runs through; with it, its order."""
        check_setting("epoch", epoch)
        if epoch != self._epoch:
            self._epoch, self._position, self._resume = epoch, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """Where the loop is: what `load_state_dict` needs to go on with the very next batch."""
        return {**self._identity(), "epoch": self._epoch, "batch": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another loader was; InvalidSettings names what differs from it."""
        if not isinstance(state, dict):
            raise InvalidSettings(f"this is no state of a loader: {type(state).__name__}, not a dict")
        for name, own in self._identity().items():
            if state.get(name) != own:
                raise InvalidSettings(f"this state has {name} {state.get(name)!r}, the loader has {own!r}")
        epoch, batch = state.get("epoch"), state.get("batch")
        if type(epoch) is not int or type(batch) is not int or epoch < 0 or not 0 <= batch <= len(self):
            raise InvalidSettings(
                f"this state is at batch {batch!r} of epoch {epoch!r}, of {len(self)} batches"
            )
        self._epoch, self._position, self._resume = epoch, batch, batch

    @property
    def _samples(self) -> int:
        return self._manifest.schema.samples

    @property
    def _place(self) -> ArtifactLocation:
        return self._manifest.location_of(self._variant)

    def _open(self) -> Pipeline:
        ordered = replace(self._manifest.opener(self._variant), random=self._order.kind != "sequential")
        with self._place.hinting():
            backend = select_backend(ordered, self._fields, self._threads, self._direct)
        return Pipeline(backend, self._fields, self._order, transfer_to(self._device), self._transform)

    def _identity(self) -> dict[str, Any]:
        """What has to be the same for a position to mean the same batches."""
        order = self._order
        blocks = {"block_rows": order.block_rows, "window_batches": order.window_batches}
        return {
            "version": STATE_VERSION,
            "dataset": f"{self._manifest.content or 0:016x}",
            "samples": self._samples,
            "order": order.kind,
            "seed": order.seed,
            "batch_size": order.batch_size,
            "drop_last": order.drop_last,
            "rank": order.rank,
            "world_size": order.world_size,
            **(blocks if order.kind == "block" else {}),
        }


def _chosen(schema: Schema, names: Sequence[str] | None) -> Schema:
    if names is None:
        return schema
    known = [field.name for field in schema.fields]
    if wrong := [name for name in names if name not in known]:
        raise InvalidSettings(f"fields {', '.join(wrong)}: the dataset has {', '.join(known)}")
    if not names:
        raise InvalidSettings(f"fields: name at least one of {', '.join(known)}")
    return Schema(schema.samples, tuple(schema.field(name) for name in dict.fromkeys(names)))


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """This process's rank and how many there are: as given, else torch.distributed's, else alone."""
    if (rank is None) != (world_size is None):
        raise InvalidSettings("rank and world_size go together: give both or neither")
    if rank is None or world_size is None:
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return 0, 1
        return distributed.get_rank(), distributed.get_world_size()
    return rank, world_size
