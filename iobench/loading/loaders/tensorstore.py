"""TensorStore over Zarr, version 2 or 3: each batch is one read of all its rows, decoded on its own threads.

As its documentation advises: arrays are opened once, within a context that holds the cache of chunks, and
reads are asynchronous, so that several batches can be under way (`prefetch`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from iobench.formats import Format, Rows, option
from iobench.loading.loaders._loader import CopyingLoader, Epochs, Job
from iobench.loading.loaders._workers import MOST_AHEAD
from iobench.loading.tensors import tensors_of

if TYPE_CHECKING:
    from pathlib import Path

    from iobench.formats._zarr_reader import ZarrReader
    from iobench.loading.host_to_device import HostBatch


@dataclass(frozen=True)
class TensorStore(CopyingLoader):
    """A store for each field, told the rows of each batch."""

    name: ClassVar[str] = "tensorstore"
    summary: ClassVar[str] = "TensorStore over Zarr: asynchronous reads of whole batches"
    library: ClassVar[str] = "tensorstore"
    advised: ClassVar[str] = "prefetch=4"
    modules: ClassVar[tuple[str, ...]] = ("tensorstore", "zarr")
    extra: ClassVar[str] = "tensorstore"
    isolated: ClassVar[bool] = True

    prefetch: int | None = option(
        None, "batches that are read ahead; by default none", minimum=0, maximum=MOST_AHEAD
    )
    cache_bytes: int = option(
        0, "bytes of decoded chunks that are kept", minimum=0, maximum=1 << 50, unit="bytes"
    )

    def reads(self, format: Format) -> bool:
        """Zarr."""
        return format.name == "zarr"

    def open(self, job: Job) -> Epochs:
        """The stores, after the metadata were looked at as everywhere."""
        return TensorStoreEpochs(self, job)


class TensorStoreEpochs(Epochs):
    """Reads that are under way, the oldest first."""

    def __init__(self, loader: TensorStore, job: Job) -> None:
        super().__init__(loader, job)
        self._ahead = loader.prefetch or 0
        with job.opener() as reader:  # a group that holds something else is told as everywhere
            folders = cast("ZarrReader", reader).folders()
        self._stores = _opened(folders, loader.cache_bytes)

    @property
    def ahead(self) -> bool:
        """Where it is asked to."""
        return self._ahead > 0

    def _epoch(self, asked: Sequence[Rows]) -> Iterator[HostBatch]:
        under_way: deque[dict[str, Any]] = deque()
        for rows in asked:
            under_way.append({name: store[rows].read() for name, store in self._stores.items()})
            if len(under_way) > self._ahead:
                yield self._done(under_way.popleft())
        while under_way:
            yield self._done(under_way.popleft())

    def _done(self, reads: dict[str, Any]) -> HostBatch:
        arrays = {name: np.ascontiguousarray(read.result()) for name, read in reads.items()}
        return self.pinned(tensors_of(arrays))

    def close(self) -> None:
        """Let go of the stores."""
        self._stores = {}


def _opened(folders: Mapping[str, tuple[Path, int]], cache_bytes: int) -> dict[str, Any]:
    """The store of each field, read-only, by one context."""
    import tensorstore

    context = tensorstore.Context({"cache_pool": {"total_bytes_limit": cache_bytes}})
    found = {}
    for name, (folder, version) in folders.items():
        spec = {
            "driver": "zarr3" if version == 3 else "zarr",
            "kvstore": {"driver": "file", "path": f"{folder}/"},
        }
        # what is cached is not looked at again: the files do not change while they are measured
        found[name] = tensorstore.open(spec, context=context, read=True, open=True, recheck_cached=False)
    return {name: future.result() for name, future in found.items()}
