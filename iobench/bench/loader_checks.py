"""Content checks of loaders that decode images themselves, and of user-defined ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.base.errors import TargetError, WrongContent
from iobench.base.finding import Finding
from iobench.bench.case import Case
from iobench.bench.content_check import NO_HASHES, SampleCoverage, no_list
from iobench.dataset.checksum import Checksum
from iobench.dataset.manifest import Manifest
from iobench.dataset.verify import hashes_in_time
from iobench.formats import Array, Rows, Schema, array_of, index_of
from iobench.loading.host_to_device import DeviceBatch
from iobench.loading.loaders import EpochRequest, Job
from iobench.results.cases import trains
from iobench.results.parts import ContentCheckPart


class PixelCheck:
    """Compares each requested row with what the format decodes, which is read again.

    Arrays of bytes may differ by a tolerance, the other fields may not. The case is reported as not verified,
    with the largest difference, because no checksum of such pixels is known.
    """

    def __init__(self, job: Job, tolerance: int) -> None:
        self._job, self._tolerance, self._most = job, tolerance, 0
        self._rows: Iterator[Rows] = iter(())

    def expect(self, request: EpochRequest) -> None:
        """Note the rows that will come next; call it before the first batch."""
        assert not isinstance(request, int), "a map-style loader is given its rows"
        self._rows = iter(request)

    def add(self, batch: DeviceBatch) -> None:
        """Compare a batch; raises WrongContent for the first row that differs by more than allowed."""
        rows = index_of(next(self._rows, slice(0, 0)))
        with self._job.opener() as reader:
            expected = reader.batch(rows)
        for name, stored in expected.items():
            found = array_of(batch[name].cpu())
            if found.shape != stored.shape:
                shapes = {"expected": f"{stored.shape}", "found": f"{found.shape}"}
                raise WrongContent(f"field {name} has another shape", kind="wrong-shape", **shapes)
            self._compare(name, rows.tolist(), stored, found)

    def _compare(self, name: str, rows: list[int], stored: Array, found: Array) -> None:
        is_image = stored.dtype == np.uint8 and stored.ndim > 1
        for row, one, other in zip(rows, stored, found, strict=True):
            far = int(np.abs(one.astype(np.int64) - other.astype(np.int64)).max()) if is_image else 0
            if far > self._tolerance or not (is_image or np.array_equal(one, other)):
                raise WrongContent(
                    f"wrong content on the device: {name} of row {row} differs from the stored one",
                    kind="wrong-row",
                    expected=f"at most {self._tolerance} of 255 apart" if is_image else f"{one}",
                    found=f"{far}" if is_image else f"{other}",
                )
            self._most = max(self._most, far)

    def conclude(self, part: bool = False) -> ContentCheckPart:
        """Return how far the pixels were apart; WrongContent if rows are missing from a whole epoch."""
        missing = 0 if part else sum(len(index_of(rows)) for rows in self._rows)
        if missing:
            found = f"{missing:,} missing"
            raise WrongContent("an epoch ended early", kind="wrong-count", expected="all rows", found=found)
        apart = Finding(
            "other-pixels",
            f"its own decoder's pixels are at most {self._most} of 255 from the format's, and "
            f"{self._tolerance} are allowed; the other fields are equal",
            values={"most": self._most, "tolerance": self._tolerance},
        )
        return ContentCheckPart(unverified=[apart])


class UserLoaderCheck:
    """Compares the batches of an epoch, or a part of one, with the manifest, and reports what is unverified.

    If batches hold the dataset's fields, every sample is hashed and compared. Otherwise the case is
    measured as not verified. In a part, samples that have not come are not missed. A list of hashes that is
    missing is made if that takes no longer than `seconds`.
    """

    def __init__(self, case: Case, manifest: Manifest, seconds: float = math.inf) -> None:
        self._case, self._manifest, self._seconds = case, manifest, seconds
        self._check, self._schema = Checksum(manifest.schema), manifest.schema
        self._hashes: list[npt.NDArray[np.int64]] = []
        self._other: str | None = None  # difference between its batches and the dataset's fields
        self._largest = 0

    def expect(self, request: EpochRequest) -> None:
        """Do nothing: its rows are its own."""

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
                problem = f"a training step needs the dataset's fields: {self._other}"
                raise TargetError(problem, kind="untrainable-batches")
            return
        hashes: Any = self._check.hashes(batch)
        self._hashes.append(hashes.cpu().numpy())

    def conclude(self, part: bool = False) -> ContentCheckPart | None:
        """Return why the content is not verified; None if the whole dataset came as requested.

        `part` tells that the epoch was cut, so that not all samples came.
        """
        if not self._largest:
            raise TargetError("it yielded no batches: there is nothing to measure", kind="empty")
        if self._other is not None:
            return ContentCheckPart(unverified=[Finding("other-fields", self._other), *self._batches()])
        stored = hashes_in_time(self._manifest, self._case.variant, self._seconds)
        if stored is None:
            return ContentCheckPart(unverified=[no_list(self._manifest), *self._batches()])
        cover = SampleCoverage(stored, self._schema.samples, self._hashes)
        whole = cover.is_whole(part)
        reasons = [*self._content(cover, whole), *self._batches()]
        if whole and not reasons:
            return None
        return ContentCheckPart(unverified=reasons, verified_samples=None if whole else cover.verified)

    def _content(self, cover: SampleCoverage, whole: bool) -> Iterator[Finding]:
        """Count samples that are missing, repeated, or not of the dataset; else compare the order."""
        missing = cover.dropped if whole else 0
        counts = {"foreign": cover.foreign, "missing": missing, "repeated": cover.repeated}
        requested = self._case.order
        if not cover.verified:
            message = "none of its samples is the dataset's: they are other data, or were transformed"
            yield Finding("other-data", message) if cover.complete else NO_HASHES
        elif parts := [f"{count:,} {what}" for what, count in counts.items() if count]:
            message = f"{', '.join(parts)} of {self._schema.samples:,} samples"
            yield Finding("sample-coverage", message, values={**counts, "samples": self._schema.samples})
        elif cover.in_order != (requested == "sequential"):
            theirs = "an order of its own" if requested == "sequential" else "stored order"
            wanted = "stored" if requested == "sequential" else requested
            message = f"its samples come in {theirs}, not in {wanted} order"
            yield Finding("other-order", message, values={"requested": requested})

    def _batches(self) -> Iterator[Finding]:
        requested = min(self._case.batch_size, self._schema.samples)
        if self._largest != requested:
            message = f"its batches hold up to {self._largest:,} samples, not {requested:,}"
            values = {"largest": self._largest, "requested": requested}
            yield Finding("other-batch-size", message, values={**values})


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
