"""iobench's own loader, as a case: see `iobench.stream`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from iobench.bench.case import Settings
from iobench.dataset.manifest import Opener
from iobench.formats import Rows
from iobench.loading.loaders._base import Loader
from iobench.loading.stages import UNTIMED, Stages
from iobench.loading.stream.backend import open_backend
from iobench.loading.stream.pipeline import Pipeline
from iobench.loading.stream.transfer import transfer_to
from iobench.loading.transfer import HostBatch


class Stream(Loader):
    """Batches straight to the device; its memory is touched when it is opened."""

    name = "stream"

    def __init__(
        self, opener: Opener, settings: Settings, device: torch.device, stages: Stages = UNTIMED
    ) -> None:
        super().__init__(opener, settings, device, stages)
        backend = open_backend(opener, opener.schema, settings.threads, settings.direct)
        order = settings.row_order(opener.schema)
        self._pipeline = Pipeline(backend, opener.schema, order, transfer_to(device), stages=stages)

    @property
    def ahead(self) -> bool:
        """Its threads do."""
        return True

    def _epoch(self, batches: Sequence[Rows]) -> Iterator[HostBatch]:
        """What the threads read ahead."""
        return self._pipeline.run(batches)

    def close(self) -> None:
        """Close the files; memory goes when the last batch does."""
        self._pipeline.close()
