"""Source of the first samples of another source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from iobench.dataset.sources._source import Source
from iobench.formats import Batch, Schema


class FirstSamples(Source):
    """The first `count` samples of another source, or all if it has fewer."""

    def __init__(self, whole: Source, count: int) -> None:
        self._whole = whole
        self.schema = Schema(min(count, whole.schema.samples), whole.schema.fields)
        self.name = f"{whole.name}-first-{self.schema.samples}"
        self.decodes = whole.decodes

    @property
    def description(self) -> dict[str, Any]:
        """Description of the other source, with the number of samples as `first`."""
        return {**self._whole.description, "first": self.schema.samples}

    def batches(self) -> Iterator[Batch]:
        """Yield the other source's batches up to that number of samples."""
        left = self.schema.samples
        for batch in self._whole.batches():
            count = len(next(iter(batch.values())))
            yield batch if count <= left else {name: array[:left] for name, array in batch.items()}
            left -= min(count, left)
            if not left:
                return
