"""Batches of a prepared dataset on a device from any loader, as `iobench run` measures them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.base.options import check_setting
from iobench.dataset.remote_dataset import dataset_at
from iobench.loading import loaders
from iobench.loading.batching import BLOCK_BYTES, WINDOW_BYTES, Batching

if TYPE_CHECKING:
    from iobench.loading.host_to_device import DeviceBatch


def batches(
    dataset: str | Path,
    *,
    format: str,
    loader: str,
    batch_size: int = 256,
    batch_tokens: int | None = None,
    order: str = "sequential",
    seed: int = 0,
    device: str = "cpu",
    epoch: int = 0,
    rank: int | None = None,
    world_size: int | None = None,
    block_bytes: int = BLOCK_BYTES,
    window_bytes: int = WINDOW_BYTES,
    data_dir: str | Path = "data",
) -> Generator[DeviceBatch, None, None]:
    """Yield one epoch of batches on a device, each field with samples along its first axis.

    A batch is on the device when the consumer's stream reaches it. On the CPU, a loader that `reuses` its
    memory, such as ffcv, overwrites a batch when the next one is requested.

    Parameters
    ----------
    dataset : str or Path
        Folder or address written by `iobench prepare`.
    format : str
        A variant prepared in it, such as "memmap" or "hdf5:compression=gzip".
    loader : str
        A loader with its options, such as "dataloader:num_workers=4".
    batch_size : int
        Samples per batch.
    batch_tokens : int, optional
        For samples that differ in length, in place of `batch_size`: most elements of a batch.
    order : str
        "sequential", "random" or "block".
    seed, epoch : int
        Together they determine the order.
    device : str
        Device name, such as "cpu", "cuda:0" or "auto".
    rank, world_size : int, optional
        The share of the samples; looked up if they are not given, as by StreamLoader.
    block_bytes, window_bytes : int
        Sizes of blocks and windows of order "block".
    data_dir : str or Path
        Folder for the cached manifest and indexes of a dataset at an address.

    Yields
    ------
    dict of str to torch.Tensor or Ragged
        One tensor per field; where samples differ in length, two: values and offsets.

    Raises
    ------
    InvalidSettings, InvalidOption
        If a setting or an option of the loader is invalid, or a loader with an order of its own is one of
        several ranks.
    ManifestError, CorruptArtifact
        If the dataset or the artifact is missing or damaged.
    LoaderFailed
        If the loader or the disk fails.
    """
    import torch

    from iobench.host.device import pick_device
    from iobench.host.rank_info import given_rank, process_rank
    from iobench.loading.host_to_device import HostToDevice
    from iobench.loading.loaders import Job

    check_setting("epoch", epoch)
    chosen = str(pick_device(device))
    used = loaders.parse(loader).on(chosen)
    manifest = dataset_at(dataset, Path(data_dir))
    opener = manifest.opener(format)
    used.check_schema(opener.schema)
    batching = Batching(order, batch_size, seed, block_bytes, window_bytes, batch_tokens=batch_tokens)
    own = given_rank(rank, world_size) or process_rank()
    if own.world_size > 1 and (obstacle := used.ranks_obstacle):
        raise obstacle.changed(
            problem=f"loader {used.name}, {own}: {obstacle.problem}",
            hint="give rank=0, world_size=1 to read all of it here",
        )
    drawn = batching.order_over(opener, own.rank, own.world_size)
    transfer = HostToDevice(torch.device(chosen), used.copies_without_blocking)
    requested = epoch if used.iterable_style else used.rows(drawn, opener.schema.samples, epoch)
    job = Job(opener, drawn, chosen)
    with (
        manifest.location_of(format).hinting(),
        closing(used.open(job)) as epochs,
        closing(epochs.epoch(requested)) as running,
    ):
        yield from map(transfer.move, running)
