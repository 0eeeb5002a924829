"""StreamLoader as a loader of `iobench run`; see `iobench.stream`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from iobench.formats import Rows
from iobench.loading.loaders import Epochs, Job, Loader
from iobench.loading.tensors import HostBatch
from iobench.stream.options import ReadOptions

SLOTS = 5


@dataclass(frozen=True)
class Stream(ReadOptions, Loader):
    """Threads that read ahead into reused memory."""

    summary: ClassVar[str] = "StreamLoader: threads read ahead, through the page cache or past it"
    library: ClassVar[str] = "torch"
    stateful: ClassVar[bool] = True
    ragged: ClassVar[bool] = True

    def pins(self, device: str) -> bool:
        """Return True for every device but the CPU."""
        return not device.startswith("cpu")

    def slots(self, batch_bytes: int) -> tuple[int, int]:
        """Return the bytes of a slot, several batches if they are small, and the number of slots."""
        from iobench.stream.pipeline import GROUP_BYTES

        return max(1, GROUP_BYTES // batch_bytes) * batch_bytes, SLOTS

    def open(self, job: Job) -> Epochs:
        """Open the delivery of batches; a StreamLoader if it is to be resumed."""
        return StreamEpochs(self, job) if job.dataset is None else StatefulStreamEpochs(self, job)


class StreamEpochs(Epochs):
    """Epochs of a StreamLoader, whose batches are copies on the CPU, too."""

    prefetches = True  # its threads read ahead

    def __init__(self, loader: Stream, job: Job) -> None:
        super().__init__(loader, job)
        import torch

        from iobench.stream.backend_selection import open_delivery
        from iobench.stream.transfer import transfer_to

        transfer = transfer_to(torch.device(job.device))
        collate = None if job.collate.is_jagged else job.collate
        # a view has read nothing yet, and on the CPU no later step would
        self._delivery = open_delivery(
            job.opener, job.opener.schema, loader, job.order, transfer, collate, copy=True, stages=job.stages
        )

    @property
    def read_ahead(self) -> int:
        """Most batches that its threads and slots hold."""
        return self._delivery.read_ahead

    def _epoch(self, request: Sequence[Rows]) -> Iterator[HostBatch]:
        return self._delivery.run(request)

    def close(self) -> None:
        """Close the files; the memory is released with the last batch."""
        self._delivery.close()


class StatefulStreamEpochs(Epochs):
    """Epochs of a StreamLoader, which draws the rows itself and has a state."""

    def __init__(self, loader: Stream, job: Job) -> None:
        super().__init__(loader, job)
        from iobench.stream.options import StreamOptions
        from iobench.stream.stream_loader import StreamLoader

        order = job.order
        assert job.dataset is not None
        self._stream = StreamLoader(
            job.dataset,
            format=job.opener.format.variant,
            batch_size=order.batch_size,
            order=order.kind,
            seed=order.seed,
            device=job.device,
            rank=order.rank,
            world_size=order.world_size,
            options=StreamOptions(**loader.options),
        )

    def _epoch(self, request: Sequence[Rows]) -> Iterator[HostBatch]:
        yield from self.resumable(self._stream)

    def close(self) -> None:
        """Close the files and release the memory."""
        self._stream.close()
