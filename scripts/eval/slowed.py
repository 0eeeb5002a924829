"""A DataLoader that is a tenth slower for each batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter

from iobench.formats import Rows
from iobench.loading.host_to_device import HostBatch
from iobench.loading.loaders.dataloader import DataLoaderEpochs

SLOWED_BY = 0.1
_epoch = DataLoaderEpochs._epoch


def slowed_epoch(epochs: DataLoaderEpochs, request: Sequence[Rows]) -> Iterator[HostBatch]:
    """Yield the batches of an epoch, each after another tenth of its time."""
    before = perf_counter()
    for batch in _epoch(epochs, request):
        until = perf_counter() + SLOWED_BY * (perf_counter() - before)
        while perf_counter() < until:
            pass
        yield batch
        before = perf_counter()


def slow_down() -> None:
    """Make DataLoader slower in this process."""
    DataLoaderEpochs._epoch = slowed_epoch  # type: ignore[method-assign]
