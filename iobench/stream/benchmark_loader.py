"""StreamLoader as a loader of `iobench run`; see `iobench.stream`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from iobench.base.options import option
from iobench.formats import Rows
from iobench.loading.loaders import Epochs, Job, Loader
from iobench.loading.number_limits import LIMITS
from iobench.objects.reader import MAX_GAP

if TYPE_CHECKING:
    from iobench.loading.host_to_device import HostBatch

SLOTS = 5


@dataclass(frozen=True)
class Stream(Loader):
    """Threads that read ahead into reused memory."""

    name: ClassVar[str] = "stream"
    summary: ClassVar[str] = "StreamLoader: threads read ahead, through the page cache or past it"
    library: ClassVar[str] = "torch"
    draws: ClassVar[bool] = True
    stateful: ClassVar[bool] = True
    ragged: ClassVar[bool] = True

    threads: int | None = option(
        None,
        "reading threads; by default chosen by format and number of cores",
        minimum=1,
        maximum=LIMITS["threads"][1],
    )
    direct: bool | None = option(
        None, "read past the page cache; by default only if the data would not stay in memory"
    )

    in_flight: int | None = option(
        None, "object store: requests in flight; by default 64", minimum=1, maximum=1024
    )
    request_bytes: int | None = option(
        None, "object store: most bytes of a request; by default 1 MiB", minimum=1, maximum=1 << 30
    )
    coalesce_bytes: int | None = option(
        None, "object store: gaps up to this are fetched along; by default 64 KiB", minimum=0, maximum=MAX_GAP
    )

    def pins(self, device: str) -> bool:
        """Return True for every device but the CPU."""
        return not device.startswith("cpu")

    def slots(self, batch_bytes: int) -> tuple[int, int]:
        """Return the bytes of a slot, several batches if they are small, and the number of slots."""
        from iobench.stream.pipeline import GROUP_BYTES

        return max(1, GROUP_BYTES // batch_bytes) * batch_bytes, SLOTS

    def open(self, job: Job) -> Epochs:
        """Open the pipeline, which touches all of its memory; a StreamLoader if it is to be resumed."""
        return StreamEpochs(self, job) if job.dataset is None else StatefulStreamEpochs(self, job)


class StreamEpochs(Epochs):
    """Epochs of a StreamLoader pipeline."""

    def __init__(self, loader: Stream, job: Job) -> None:
        super().__init__(loader, job)
        import torch

        from iobench.stream.backend_selection import select_backend
        from iobench.stream.pipeline import Pipeline
        from iobench.stream.transfer import transfer_to

        schema = job.opener.schema
        requests = (loader.in_flight, loader.request_bytes, loader.coalesce_bytes)
        backend = select_backend(job.opener, schema, loader.threads, loader.direct, requests)
        transfer = transfer_to(torch.device(job.device))
        collate = None if job.collate.is_jagged else job.collate
        self._pipeline = Pipeline(backend, schema, job.order, transfer, collate, job.stages)

    @property
    def prefetches(self) -> bool:
        """True: its threads read ahead."""
        return True

    @property
    def read_ahead(self) -> int:
        """Most batches that its threads and slots hold."""
        return self._pipeline.read_ahead

    def _epoch(self, request: Sequence[Rows]) -> Iterator[HostBatch]:
        """Yield the batches that the threads read."""
        return self._pipeline.run(request)

    def close(self) -> None:
        """Close the files; the memory is released with the last batch."""
        self._pipeline.close()


class StatefulStreamEpochs(Epochs):
    """Epochs of a StreamLoader, which draws the rows itself and has a state."""

    def __init__(self, loader: Stream, job: Job) -> None:
        super().__init__(loader, job)
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
            threads=loader.threads,
            direct=loader.direct,
        )

    def _epoch(self, request: Sequence[Rows]) -> Iterator[HostBatch]:
        """Yield the batches of the StreamLoader's next epoch."""
        yield from self.resumable(self._stream)

    def close(self) -> None:
        """Close the files and release the memory."""
        self._stream.close()
