"""iobench's own loader, as an arm: see `iobench.stream`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from formats import Rows
from iobench.arms import Settings
from iobench.feed import HostBatch
from iobench.loaders._base import Loader
from iobench.manifest import Opener
from iobench.stages import UNTIMED, Stages
from iobench.stream.pipeline import Pipeline
from iobench.stream.source import open_source
from iobench.stream.transfer import transfer_to


class Stream(Loader):
    """Batches straight to the device; its memory is touched when it is opened."""

    name = "stream"

    def __init__(
        self, opener: Opener, settings: Settings, device: torch.device, stages: Stages = UNTIMED
    ) -> None:
        super().__init__(opener, settings, device, stages)
        source = open_source(opener, opener.schema, settings.threads, settings.direct)
        order = settings.row_order(opener.schema)
        self._pipeline = Pipeline(source, opener.schema, order, transfer_to(device), stages=stages)

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
