"""MosaicML's StreamingDataset over MDS shards that lie on this machine, under its StreamingDataLoader.

As its documentation advises: the dataset is told the batch size, and shuffles by itself, by default with
`py1e`, which moves samples within a range of shards. The library keeps its state in shared memory and
in lock files of the temporary folder, by a number of its own, and leaves them when its process is
ended: they are removed when the loader is closed.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from iobench.formats import Format, field_name, option
from iobench.host import interrupts
from iobench.loading.loaders._loader import Epochs, Job
from iobench.loading.loaders._workers import WorkerLoader
from iobench.loading.loaders.dataloader import unwarned
from iobench.loading.tensors import silence_read_only_warning

if TYPE_CHECKING:
    from iobench.loading.host_to_device import HostBatch

SHARED_MEMORY = Path("/dev/shm")
OF_64_NODES = ("py1s", "py2s")  # shuffles that deal samples out to 64 nodes, and repeat some, unless told


@dataclass(frozen=True)
class Mosaic(WorkerLoader):
    """Its own order, over a local folder; nothing is downloaded or copied."""

    name: ClassVar[str] = "mosaic"
    summary: ClassVar[str] = "mosaicml-streaming: StreamingDataset over local MDS shards"
    library: ClassVar[str] = "mosaicml-streaming"
    advised: ClassVar[str] = "num_workers={cores}"
    modules: ClassVar[tuple[str, ...]] = ("streaming",)
    extra: ClassVar[str] = "mosaic"
    orders: ClassVar[tuple[str, ...]] = ("sequential", "random")
    own_order: ClassVar[bool] = True
    isolated: ClassVar[bool] = True

    shuffle_algo: str = option(
        "py1e",
        "how random order shuffles; naive: all samples among each other",
        choices=("py1e", "py1br", *OF_64_NODES, "naive"),
    )

    def reads(self, format: Format) -> bool:
        """MDS shards."""
        return format.name == "mds"

    def open(self, job: Job) -> Epochs:
        """The dataset, over its index."""
        return MosaicEpochs(self, job)


def collated(samples: list[dict[str, Any]]) -> Any:
    """A batch of samples, images as arrays of their pixels, as a transform of one's own would make them."""
    import numpy as np
    from torch.utils.data import default_collate

    images = [name for name, value in samples[0].items() if hasattr(value, "getbands")]  # as Pillow's do
    if images:
        samples = [sample | {name: np.array(sample[name]) for name in images} for sample in samples]
    return default_collate(samples)


class MosaicEpochs(Epochs):
    """One dataset, told the number of each epoch."""

    def __init__(self, loader: Mosaic, job: Job) -> None:
        super().__init__(loader, job)
        from streaming import StreamingDataset

        self._settings = loader
        silence_read_only_warning()  # it hands views of shards to torch, which copies them
        with job.opener():  # shards that hold something else are told as everywhere
            pass
        self._dataset: Any = StreamingDataset(
            local=str(job.opener.path),
            batch_size=job.order.batch_size,
            shuffle=job.order.kind == "random",
            shuffle_algo=loader.shuffle_algo,
            num_canonical_nodes=1 if loader.shuffle_algo in OF_64_NODES else None,
            shuffle_seed=job.order.seed % (1 << 32),
        )

    @property
    def ahead(self) -> bool:
        """Its workers and threads do."""
        return True

    def _epoch(self, asked: int) -> Iterator[HostBatch]:
        from streaming import StreamingDataLoader

        settings = self._settings
        self._dataset.next_epoch = asked
        with interrupts.blocked(), unwarned():
            loader = StreamingDataLoader(
                self._dataset,
                batch_size=self.job.order.batch_size,
                num_workers=settings.num_workers,
                prefetch_factor=settings.prefetch_factor,
                pin_memory=bool(settings.pin_memory),
                collate_fn=collated,
            )
            batches = iter(loader)
        yield from map(self._typed, batches)

    def _typed(self, batch: HostBatch) -> HostBatch:
        """The fields by their names, bools as such: MDS has them as bytes."""
        import torch

        named = {field_name(column): tensor for column, tensor in batch.items()}
        return {
            f.name: named[f.name].view(torch.bool) if f.dtype == "bool" else named[f.name]
            for f in self.opener.schema.fields
        }

    def close(self) -> None:
        """Close the files, and remove what the library keeps beside its processes."""
        if self._dataset is None:
            return
        prefix, self._dataset = f"{self._dataset._shm_prefix_int:06}_", None
        gc.collect()
        for folder in (SHARED_MEMORY, Path(tempfile.gettempdir())):
            for left in folder.glob(f"{prefix}*"):
                left.unlink(missing_ok=True)
