"""TensorStore over Zarr, version 2 or 3: one read per batch, decoded on TensorStore's own threads.

This follows TensorStore's documentation: arrays are opened once, in a context with the chunk cache, and
reads are asynchronous, so several batches can be in flight (`prefetch`). At an address they go through its
drivers for web servers and S3.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from iobench.base.options import option
from iobench.formats import Rows
from iobench.loading.loaders import MAX_PREFETCH, CopyingLoader, Epochs, Job
from iobench.loading.tensors import HostBatch, tensors_of
from iobench.objects.url import s3_endpoint, s3_is_public, s3_region

if TYPE_CHECKING:
    from iobench.contrib.formats.zarr.reader import ZarrReader
    from iobench.dataset.opener import Opener


@dataclass(frozen=True)
class TensorStore(CopyingLoader):
    """A map-style loader: one store for each field."""

    name: ClassVar[str] = "tensorstore"
    summary: ClassVar[str] = "TensorStore over Zarr: asynchronous reads of whole batches"
    library: ClassVar[str] = "tensorstore"
    format_names: ClassVar[tuple[str, ...]] = ("zarr",)
    recommended_options: ClassVar[str] = "prefetch=4"
    modules: ClassVar[tuple[str, ...]] = ("tensorstore", "zarr")
    schemes: ClassVar[tuple[str, ...]] = ("http", "https", "s3")
    unpinned: ClassVar[tuple[str, ...]] = schemes

    prefetch: int | None = option(
        None, "batches to read ahead; by default none", minimum=0, maximum=MAX_PREFETCH
    )
    cache_bytes: int = option(
        0, "size of the cache of decoded chunks", minimum=0, maximum=1 << 50, unit="bytes"
    )

    @property
    def read_ahead(self) -> int:
        """The reads in flight."""
        return 1 + (self.prefetch or 0)

    def open(self, job: Job) -> Epochs:
        """Check the metadata as every loader does, and open the stores."""
        return TensorStoreEpochs(self, job)


class TensorStoreEpochs(Epochs):
    """Epochs with several reads in flight, the oldest first."""

    def __init__(self, loader: TensorStore, job: Job) -> None:
        super().__init__(loader, job)
        self._prefetch = loader.prefetch or 0
        self._stores = _open(_specs(job.opener), loader.cache_bytes)

    @property
    def prefetches(self) -> bool:
        """True if the option `prefetch` is above 0."""
        return self._prefetch > 0

    def _epoch(self, request: Sequence[Rows]) -> Iterator[HostBatch]:
        in_flight: deque[dict[str, Any]] = deque()
        for rows in request:
            in_flight.append({name: store[rows].read() for name, store in self._stores.items()})
            if len(in_flight) > self._prefetch:
                yield self._result(in_flight.popleft())
        while in_flight:
            yield self._result(in_flight.popleft())

    def _result(self, reads: dict[str, Any]) -> HostBatch:
        arrays = {name: np.ascontiguousarray(_result(read)) for name, read in reads.items()}
        return self.pinned(tensors_of(arrays))

    def close(self) -> None:
        """Release the stores."""
        self._stores = {}


def _specs(opener: Opener) -> dict[str, dict[str, Any]]:
    if opener.remote is None:
        with opener() as reader:  # checks the files as every loader does
            folders = cast("ZarrReader", reader).folders()
        return {
            name: {
                "driver": "zarr3" if version == 3 else "zarr",
                "kvstore": {"driver": "file", "path": f"{folder}/"},
            }
            for name, (folder, version) in folders.items()
        }
    address, plain = opener.remote.files.address, {"driver": "zarr3", "fill_missing_data_reads": False}
    fields = opener.schema.fields  # as iobench wrote them: version 3, without a missing chunk
    return {field.name: {**plain, "kvstore": _kvstore(address(f"{field.name}/"))} for field in fields}


def _kvstore(address: str) -> dict[str, Any]:
    """Describe a folder on a web server or in S3, whose credentials the library finds itself."""
    if not address.startswith("s3://"):
        return {"driver": "http", "base_url": address}
    bucket, _, path = address.removeprefix("s3://").partition("/")
    store: dict[str, Any] = {"driver": "s3", "bucket": bucket, "path": path}
    if endpoint := s3_endpoint():
        store |= {"endpoint": endpoint, "aws_region": s3_region()}
    given = "environment" if os.environ.get("AWS_ACCESS_KEY_ID") else "default"
    return {**store, "aws_credentials": {"type": "anonymous" if s3_is_public() else given}}


def _open(specs: Mapping[str, dict[str, Any]], cache_bytes: int) -> dict[str, Any]:
    """Open the store of each field read-only, all in one context."""
    import tensorstore

    context = tensorstore.Context({"cache_pool": {"total_bytes_limit": cache_bytes}})
    # no recheck of cached chunks: the files do not change while they are measured
    opening = {
        name: tensorstore.open(spec, context=context, read=True, open=True, recheck_cached=False)
        for name, spec in specs.items()
    }
    return {name: _result(future) for name, future in opening.items()}


def _result(future: Any) -> Any:
    """Return a result; an error comes without the server's answer, in which S3 repeats the id of the key."""
    try:
        return future.result()
    except ValueError as error:
        raise ValueError(re.split(r" \[\w+='", str(error))[0]) from None
