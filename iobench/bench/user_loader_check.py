"""Content check of a user-defined loader, as far as its batches allow."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.base.errors import TargetError
from iobench.bench.case import Case
from iobench.dataset.checksum import Checksum
from iobench.dataset.manifest import Manifest
from iobench.dataset.verify import read_back
from iobench.formats import Schema
from iobench.loading.host_to_device import DeviceBatch
from iobench.results.cases import trains
from iobench.results.parts import ContentCheckPart


class UserLoaderCheck:
    """Compares one epoch's batches on the device with the manifest, and reports what is unverified.

    If batches hold the dataset's fields, every sample is hashed and compared. Otherwise the case is
    measured as not verified.
    """

    def __init__(self, case: Case, manifest: Manifest) -> None:
        self._case, self._manifest = case, manifest
        self._check, self._schema = Checksum(manifest.schema), manifest.schema
        self._hashes: list[npt.NDArray[np.int64]] = []
        self._other: str | None = None  # difference between its batches and the dataset's fields
        self._largest = 0

    def add(self, batch: DeviceBatch) -> None:
        """Hash a batch, if it holds the dataset's fields.

        Raises TargetError if a training step needs fields that it does not hold.
        """
        self._largest = max(self._largest, *(int(one.shape[0]) for one in batch.values() if one.ndim), 0)
        if self._other is not None:
            return
        held, fields = _held(batch), _fields(self._schema)
        if any(held.get(name) != kind for name, kind in fields.items()):
            self._other = f"its batches hold {_listed(held)}, the dataset {_listed(fields)}"
            if trains(self._case.facets):
                raise TargetError(
                    f"a training step needs the dataset's fields: {self._other}", kind="untrainable-batches"
                )
            return
        hashes: Any = self._check.hashes(batch)
        done = self._check.samples
        self._check.add(batch, np.arange(done, done + len(hashes), dtype=np.int64))
        self._hashes.append(hashes.cpu().numpy())

    def conclude(self) -> ContentCheckPart | None:
        """Return why the content is not verified; None if the whole dataset came as requested."""
        if not self._largest:
            raise TargetError("it yielded no batches: there is nothing to measure", kind="empty")
        reasons = [*self._content(), *self._batches()]
        return ContentCheckPart(unverified="; ".join(reasons)) if reasons else None

    def _content(self) -> list[str]:
        if self._other is not None:
            return [self._other]
        if self._check.content != self._manifest.content or self._check.samples != self._schema.samples:
            return self._differences()
        stored = self._check.ordered == self._manifest.ordered
        if stored and self._case.order != "sequential":
            return [f"its samples come in stored order, not in {self._case.order} order"]
        if not stored and self._case.order == "sequential":
            return ["its samples come in an order of its own, not in stored order"]
        return []

    def _differences(self) -> list[str]:
        """Count samples that are missing, repeated, or not of the dataset."""
        delivered = np.concatenate(self._hashes)
        check, opener = Checksum(self._schema), self._manifest.opener(self._case.variant)
        stored = np.concatenate([check.hashes(batch) for batch in read_back(opener)])
        foreign = int((~np.isin(delivered, stored)).sum())
        if foreign == len(delivered):
            return ["none of its samples is the dataset's: they are other data, or were transformed"]
        missing = int((~np.isin(stored, delivered)).sum())
        repeated = len(delivered) - len(np.unique(delivered))
        counts = {"foreign": foreign, "missing": missing, "repeated": repeated}
        parts = [f"{count:,} {what}" for what, count in counts.items() if count]
        return [f"{', '.join(parts)} of {self._schema.samples:,} samples"] if parts else []

    def _batches(self) -> list[str]:
        requested = min(self._case.batch_size, self._schema.samples)
        return (
            []
            if self._largest == requested
            else [f"its batches hold up to {self._largest:,} samples, not {requested:,}"]
        )


def _held(batch: DeviceBatch) -> dict[str, str]:
    return {
        name: _kind(str(one.dtype).removeprefix("torch."), tuple(one.shape[1:]))
        for name, one in batch.items()
    }


def _fields(schema: Schema) -> dict[str, str]:
    return {field.name: _kind(field.dtype, field.shape) for field in schema.fields}


def _kind(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype} {'x'.join(map(str, shape)) or 'scalar'}"


def _listed(kinds: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in kinds.items())
