"""Batches of a prepared dataset on a device by any loader: what `iobench run` measures, for a training."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.dataset.manifest import Manifest
from iobench.loading import loaders
from iobench.loading.order import BLOCK_BYTES, WINDOW_BYTES, Batching, check_setting

if TYPE_CHECKING:
    import torch


def batches(
    dataset: str | Path,
    *,
    format: str,
    loader: str,
    batch_size: int = 256,
    order: str = "sequential",
    seed: int = 0,
    device: str = "cpu",
    epoch: int = 0,
    block_bytes: int = BLOCK_BYTES,
    window_bytes: int = WINDOW_BYTES,
) -> Generator[dict[str, torch.Tensor], None, None]:
    """Yield an epoch of batches on a device, each field with the samples along its leading axis.

    `dataset`: a folder that `iobench prepare` made. `format`: a variant that is prepared in it. `loader`:
    a loader with its options, such as "dataloader:num_workers=4". `epoch` decides the order together
    with `seed`. A batch is on the device when the consumer's stream reaches it; a loader that `reuses` its
    memory, such as ffcv, fills it again on the CPU once the next batch is asked for.
    InvalidSettings, InvalidOption, ManifestError, CorruptArtifact or LoaderFailed where it cannot be had.
    """
    import torch

    from iobench.host.device import pick_device
    from iobench.loading.host_to_device import HostToDevice
    from iobench.loading.loaders import Job

    check_setting("epoch", epoch)
    chosen = str(pick_device(device))
    used = loaders.parse(loader).on(chosen)
    manifest = Manifest.load(Path(dataset))
    opener = manifest.opener(format)
    drawn = Batching(order, batch_size, seed, block_bytes, window_bytes).row_order(opener.schema)
    transfer = HostToDevice(torch.device(chosen), used.copies_without_blocking)
    asked = epoch if used.own_order else drawn.batches(opener.schema.samples, epoch)
    job = Job(opener, drawn, chosen)
    with (
        manifest.location_of(format).hinting(),
        closing(used.open(job)) as epochs,
        closing(epochs.epoch(asked)) as running,
    ):
        yield from map(transfer.move, running)
