"""The proof of somebody's own loader, as far as it can be had: which of its samples came unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.base.errors import (
    TargetError,
)
from iobench.bench.case import Case
from iobench.dataset.checksum import Checksum
from iobench.dataset.manifest import Manifest
from iobench.dataset.verify import read_back
from iobench.formats import Schema
from iobench.loading.transfer import DeviceBatch
from iobench.results.cases import trains
from iobench.results.parts import ProofPart


class ForeignProof:
    """Sees one epoch's batches on the device, and says at its end what cannot be said of them.

    Where they hold the dataset's fields every sample is hashed, and compared with what the manifest says.
    Where they do not, or hold something else, the case is measured all the same, as not proved.
    """

    def __init__(self, case: Case, manifest: Manifest) -> None:
        self._case, self._manifest = case, manifest
        self._check, self._schema = Checksum(manifest.schema), manifest.schema
        self._hashes: list[npt.NDArray[np.int64]] = []
        self._other: str | None = None  # what its batches hold in place of the dataset's fields
        self._largest = 0

    def add(self, batch: DeviceBatch) -> None:
        """Hash a batch, if it can be compared.

        TargetError where a training step finds no input in it.
        """
        self._largest = max(self._largest, *(int(one.shape[0]) for one in batch.values() if one.ndim), 0)
        if self._other is not None:
            return
        held, fields = _held(batch), _fields(self._schema)
        if any(held.get(name) != kind for name, kind in fields.items()):
            self._other = f"its batches hold {_listed(held)}, the dataset {_listed(fields)}"
            if trains(self._case.facets):
                raise TargetError(f"a training step needs the dataset's fields: {self._other}")
            return
        hashes: Any = self._check.hashes(batch)
        done = self._check.samples
        self._check.add(batch, np.arange(done, done + len(hashes), dtype=np.int64))
        self._hashes.append(hashes.cpu().numpy())

    def conclude(self) -> ProofPart | None:
        """Why nobody can say that all of the dataset came as it was asked for; None where it did."""
        if not self._largest:
            raise TargetError("it gave no batches: there is nothing to measure")
        reasons = [*self._content(), *self._batches()]
        return ProofPart(missing="; ".join(reasons)) if reasons else None

    def _content(self) -> list[str]:
        if self._other is not None:
            return [self._other]
        if self._check.content != self._manifest.content or self._check.samples != self._schema.samples:
            return self._differences()
        stored = self._check.ordered == self._manifest.ordered
        if stored and self._case.order != "sequential":
            return [
                f"its samples come in the order in which they are stored, not in {self._case.order} order"
            ]
        if not stored and self._case.order == "sequential":
            return ["its samples come in an order of its own, not in the one in which they are stored"]
        return []

    def _differences(self) -> list[str]:
        """Samples that never came, came again, or are none of the dataset's."""
        seen = np.concatenate(self._hashes)
        check, opener = Checksum(self._schema), self._manifest.opener(self._case.variant)
        written = np.concatenate([check.hashes(batch) for batch in read_back(opener)])
        foreign = int((~np.isin(seen, written)).sum())
        if foreign == len(seen):
            return ["it gives other content than the dataset's: changed on the way, or other data"]
        missing, again = int((~np.isin(written, seen)).sum()), len(seen) - len(np.unique(seen))
        counts = {"are none of the dataset's": foreign, "never came": missing, "came more than once": again}
        said = [f"{count:,} {what}" for what, count in counts.items() if count]
        return [f"of {self._schema.samples:,} samples {', '.join(said)}"] if said else []

    def _batches(self) -> list[str]:
        asked = min(self._case.batch_size, self._schema.samples)
        return (
            []
            if self._largest == asked
            else [f"its batches hold up to {self._largest:,} samples, not {asked:,}"]
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
