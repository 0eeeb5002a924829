"""Added data of a dataset, as a source of its other formats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iobench import formats
from iobench.base.errors import SourceError
from iobench.dataset import sandbox
from iobench.dataset.manifest import Manifest
from iobench.dataset.manifest_body import ExternalData
from iobench.dataset.sources import Source
from iobench.dataset.untrusted_data import UntrustedData
from iobench.formats import Batch, Schema


class AddedSource(Source):
    """Added data of a dataset, as the source of its other formats."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest, self.schema, self.name = manifest, manifest.schema, manifest.name
        self._variant, self._added = next(iter(manifest.added.items()))

    @property
    def description(self) -> dict[str, Any]:
        """Description of the dataset's source."""
        return self.manifest.source

    def in_place(self) -> tuple[Path, str] | None:
        """Return the added data."""
        return formats.with_selection(Path(self._added.path), self._added.names), self._variant

    def batches(self) -> Iterator[Batch]:
        """Yield all samples in order; raises CorruptArtifact if they changed since they were added."""
        location = self.manifest.location_of(self._variant)
        location.check()
        data = untrusted(location.path, self._variant, self._added, self.schema)
        try:
            yield from sandbox.batches(data, self.schema)
        except SourceError as error:
            raise error.changed(hint=error.hint or location.hint) from error
        location.check()


def untrusted(path: Path, variant: str, added: ExternalData, schema: Schema) -> UntrustedData:
    """Return added data as those that the sandbox reads, the samples of `schema` of them."""
    return UntrustedData(path, variant, added.stamp.bytes, stored=added.schema(schema))
