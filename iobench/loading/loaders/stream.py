"""iobench's own loader: see `iobench.loading.stream`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from iobench.formats import Rows, option
from iobench.loading.loaders._loader import Epochs, Job, Loader
from iobench.loading.order import LIMITS

if TYPE_CHECKING:
    from iobench.loading.host_to_device import HostBatch

SLOTS = 5


@dataclass(frozen=True)
class Stream(Loader):
    """Threads that read ahead into memory that is used again."""

    name: ClassVar[str] = "stream"
    summary: ClassVar[str] = "StreamLoader: threads read ahead, through the page cache or past it"
    library: ClassVar[str] = "torch"

    threads: int | None = option(
        None,
        "threads that read; by default what suits format and cores",
        minimum=1,
        maximum=LIMITS["threads"][1],
    )
    direct: bool | None = option(
        None, "read past the page cache, or never; by default where data would not stay in memory"
    )

    def pins(self, device: str) -> bool:
        """Always, where there is something to pin for."""
        return not device.startswith("cpu")

    def slots(self, batch_bytes: int) -> tuple[int, int]:
        """Several batches to a slot where they are small, and a ring of a few slots."""
        from iobench.loading.stream.pipeline import GROUP_BYTES

        return max(1, GROUP_BYTES // batch_bytes) * batch_bytes, SLOTS

    def open(self, job: Job) -> Epochs:
        """The pipeline; its memory is touched when it is opened."""
        return StreamEpochs(self, job)


class StreamEpochs(Epochs):
    """Batches straight to the device."""

    def __init__(self, loader: Stream, job: Job) -> None:
        super().__init__(loader, job)
        import torch

        from iobench.loading.stream.backend_selection import select_backend
        from iobench.loading.stream.pipeline import Pipeline
        from iobench.loading.stream.transfer import transfer_to

        schema = job.opener.schema
        backend = select_backend(job.opener, schema, loader.threads, loader.direct)
        transfer = transfer_to(torch.device(job.device))
        self._pipeline = Pipeline(backend, schema, job.order, transfer, stages=job.stages)

    @property
    def ahead(self) -> bool:
        """Its threads do."""
        return True

    def _epoch(self, asked: Sequence[Rows]) -> Iterator[HostBatch]:
        """What the threads read ahead."""
        return self._pipeline.run(asked)

    def close(self) -> None:
        """Close the files; memory goes when the last batch does."""
        self._pipeline.close()
