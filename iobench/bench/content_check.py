"""Content checks: every sample that a case delivers is hashed, and compared with the dataset's hashes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from iobench.base.errors import TargetError, WrongContent
from iobench.base.finding import Finding
from iobench.bench.case import Case
from iobench.bench.epoch import ProcessGroup
from iobench.dataset.checksum import MASK, Checksum
from iobench.dataset.manifest import Manifest
from iobench.dataset.sources.source import BATCH_BYTES
from iobench.dataset.verify import RereadHashes, SampleHashes, hashes_in_time
from iobench.formats import Array, Field, Index, Ragged, Rows, Schema, array_of, index_of
from iobench.loading.collate import COLLATED, JAGGED, LIST, Collate, Dense, SampleList
from iobench.loading.host_to_device import DeviceBatch
from iobench.loading.loaders import EpochRequest, Job, Loader
from iobench.loading.order import sample_count, shuffle_quality
from iobench.results.cases import trains
from iobench.results.parts import ContentCheckPart

Hashes = npt.NDArray[np.int64]
MOST_BATCHES = 100  # sampled evenly from the epoch to estimate its shuffle quality
PIECE = 1 << 20  # hashes at a time: one copy from the device each, so that it is not waited for
SPARE = 16  # bits of the filter per delivered hash, so that it passes few others
MOST_BITS = 26


def kept_hashes(stored: SampleHashes, samples: int) -> Iterator[tuple[npt.NDArray[np.int64], Hashes]]:
    """Yield rows whose hashes were kept, and these, in pieces."""
    for low in range(0, samples, PIECE):
        rows = np.arange(low, min(low + PIECE, samples))
        rows = rows[stored.known(rows)]
        yield rows, stored.of(rows)


class SampleCoverage:
    """Comparison of delivered samples with stored rows.

    The stored hashes are read once, in pieces: memory depends on what was delivered, about 50 bytes a
    sample. Rows with equal content count as often as they were stored. Rows without a kept hash are
    unknown, and so are the samples that match no other. Each batch of `delivered` has a hash per sample.
    """

    def __init__(self, stored: SampleHashes, samples: int, delivered: Sequence[Hashes]) -> None:
        self._stored, self._samples, self._batches = stored, samples, delivered
        self._delivered = np.concatenate(delivered) if delivered else np.empty(0, np.int64)
        self._values, came = np.unique(self._delivered, return_counts=True)
        self._due = np.zeros(len(self._values), np.int64)
        self._row = np.zeros(len(self._values), np.int64)  # of rows with equal content the last
        known = self._find()
        matched = self._due > 0
        self.complete = known == samples
        self.verified = int(came[matched].sum())
        self.foreign = int(came[~matched].sum()) if self.complete else 0
        self.repeated = int((came - self._due)[matched].clip(min=0).sum())
        self.dropped = known - int(np.minimum(came, self._due).sum())

    def is_whole(self, part: bool) -> bool:
        """Return whether all samples were compared: of an epoch that was cut, if none of them is missing."""
        return self.complete and not (part and self.dropped)

    def _find(self) -> int:
        """Count how often each delivered hash was stored; return the number of rows with a kept hash."""
        mask = (1 << min(MOST_BITS, (SPARE * len(self._values)).bit_length())) - 1
        passed, known = np.zeros(mask + 1, bool), 0
        passed[self._values & mask] = True
        for rows, hashes in kept_hashes(self._stored, self._samples):
            known += len(rows)
            some = np.flatnonzero(passed[hashes & mask])
            some = some[np.argsort(hashes[some], kind="stable")]  # near each other in the cache
            place = np.searchsorted(self._values, hashes[some]).clip(max=len(self._values) - 1)
            hit = self._values[place] == hashes[some] if len(self._values) else place < 0
            np.add.at(self._due, place[hit], 1)
            self._row[place[hit]] = rows[some[hit]]
        return known

    @property
    def in_order(self) -> bool:
        """True if samples came in stored order, except dropped ones and repetitions at the end."""
        first = self._delivered[: self._samples]
        rows = np.arange(len(first))
        known = self._stored.known(rows)
        if np.array_equal(first[known], self._stored.of(rows[known])):
            return True
        return bool(np.all(np.diff(self._rows(first)) > 0))

    def shuffle_quality(self, block_rows: int) -> float | None:
        """Return the batches' shuffle quality (see loading.shuffle_quality); None if rows have duplicates."""
        if (self._due != 1).any():
            return None
        some = self._batches[:: max(1, len(self._batches) // MOST_BATCHES)]
        return shuffle_quality([self._rows(batch) for batch in some], block_rows, self._samples)

    def _rows(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        rows: npt.NDArray[np.int64] = self._row[np.searchsorted(self._values, hashes)]
        return rows


TYPES: dict[str, Any] = {JAGGED: Ragged, LIST: SampleList}  # of a field, by kind; others are dense


class RaggedCheck:
    """Checks how the ragged fields of batches are collated, and counts their bytes and those with padding.

    Of a jagged batch the latter are what padding to the longest sample would make of it.
    """

    def __init__(self, schema: Schema, collate: Collate) -> None:
        self._schema, self._collate = schema, collate
        self._real_bytes = self._padded_bytes = 0
        self._lengths: list[Index] = []  # 8 bytes per sample

    def reported(self, part: ContentCheckPart | None) -> ContentCheckPart | None:
        """Return a result with the share of real elements and quantiles of lengths, if there are elements."""
        if not self._padded_bytes:
            return part
        median, high = np.quantile(np.concatenate(self._lengths), (0.5, 0.99)).tolist()
        fill, quantiles = self._real_bytes / self._padded_bytes, {"length_p50": median, "length_p99": high}
        return replace(part or ContentCheckPart(), fill=fill, **quantiles)

    def jagged(self, batch: DeviceBatch, number: int) -> DeviceBatch:
        """Return batch `number` with its ragged fields end to end.

        Raises WrongContent unless offsets divide the values into the samples, samples have the shapes of
        their extents, and padding is of zeros.
        """
        values, lengths = {}, []
        for field in self._schema.ragged:
            values[field.name], own = self._end_to_end(batch, field, number)
            lengths.append(own)
        if lengths:
            self._lengths.append(np.maximum.reduce(lengths))
        return {**batch, **values}

    def _end_to_end(self, batch: DeviceBatch, field: Field, number: int) -> tuple[Any, Index]:
        """Return the values of a field of a batch, end to end, and the lengths of its samples."""
        one, samples = batch[field.name], len(batch[self._schema.fields[0].name])
        if not isinstance(one, TYPES.get(self._collate.kind, Dense)):
            problem = f"field {field.name} of batch {number:,} is not collated as requested"
            kinds = {"expected": self._collate.kind, "found": type(one).__name__}
            raise WrongContent(problem, kind="not-collated", **kinds)
        values, padding = one.parted() if isinstance(one, COLLATED) else (one, None)
        lengths = _lengths(values, field, samples, number)
        extents = lengths[:, None]
        if own := field.extents:
            extents = _extents(one, batch[own.name], field, lengths, number)
        total, padded = len(values.values), samples * math.prod(extents.max(0, initial=0).tolist())
        if padding is not None:
            if padding.contiguous().view(torch.uint8).any():
                problem = f"batch {number:,}: padding of field {field.name}"
                raise WrongContent(problem, kind="wrong-padding", expected="zeros", found="other values")
            padded = total + len(padding)
        self._real_bytes += total * field.sample_bytes
        self._padded_bytes += padded * field.sample_bytes
        return values, lengths


def _lengths(one: Ragged, field: Field, samples: int, number: int) -> Index:
    """Return the lengths of the samples; WrongContent unless offsets divide the values into them."""
    offsets, total = one.offsets.cpu().numpy(), len(one.values)
    lengths: Index = np.diff(offsets)
    ends = tuple(offsets[[0, -1]].tolist())
    if len(offsets) != samples + 1 or ends != (0, total) or (lengths < 0).any():
        raise WrongContent(
            f"batch {number:,}: wrong offsets of field {field.name}",
            kind="wrong-offsets",
            expected=f"{samples + 1:,}, rising from 0 to {total:,}",
            found=f"{len(offsets):,}, from {ends[0]:,} to {ends[1]:,}",
        )
    return lengths


def _extents(one: Any, own: torch.Tensor, field: Field, lengths: Index, number: int) -> Index:
    """Return the extents `own` of the samples; WrongContent unless they have these shapes and lengths."""
    extents: Index = own.cpu().numpy()
    shapes = one.extents.cpu().numpy() if isinstance(one, COLLATED) else extents
    if not np.array_equal(shapes, extents) or not np.array_equal(extents.prod(1), lengths):
        problem = f"batch {number:,}: samples of field {field.name} have other shapes than their extents"
        raise WrongContent(problem, kind="wrong-extents")
    return extents


NO_HASHES = Finding("no-hashes", "no hash of these samples was kept")


def no_list(manifest: Manifest) -> Finding:
    """Return the reason for a part that was compared with nothing that was kept."""
    message = "the list of hashes is missing, and there is no time to read all samples"
    return Finding("no-list", message, f"run 'iobench verify --name {manifest.name}', which keeps it")


class BatchCheck(ABC):
    """Check of the batches of an epoch, or of a part of one, on the device."""

    _rows: Iterator[Rows] = iter(())  # that come next, as far as they are requested

    def expect(self, request: EpochRequest) -> None:
        """Note the rows that will come next; call it before the first batch."""
        self._rows = iter(() if isinstance(request, int) else request)

    @abstractmethod
    def add(self, batch: DeviceBatch) -> None:
        """Check a batch; raises WrongContent if its samples are not the dataset's."""

    @abstractmethod
    def conclude(self, part: bool = False) -> ContentCheckPart | None:
        """Return what is to be reported; None if the whole dataset, of fixed shapes, came as requested.

        `part` tells that the epoch was cut, so that not all samples came.
        """


def content_check(
    loader: Loader, job: Job, manifest: Manifest, group: ProcessGroup | None = None, seconds: float = math.inf
) -> BatchCheck:
    """Return the check of a loader by hashes.

    The other ranks of `group` verify their shares at the same time. A list of hashes that was not kept is
    made if that takes no longer than `seconds`.
    """
    stored = hashes_in_time(manifest, job.opener.format.variant, seconds)
    if loader.iterable_style:
        return CoverageCheck(loader, job, manifest, stored)
    return RowCheck(loader, job, manifest, stored, group or ProcessGroup())


class RowCheck(BatchCheck):
    """Checks that a map-style loader delivers the requested rows in order.

    They are compared with the stored hashes in pieces. Without a list of hashes they are compared with the
    stored rows, which are read again. That verifies a whole epoch, by the sums, but no part.
    """

    def __init__(
        self, loader: Loader, job: Job, manifest: Manifest, stored: SampleHashes | None, group: ProcessGroup
    ) -> None:
        self._loader, self._job, self._manifest, self._group = loader, job, manifest, group
        self._check, self._list = Checksum(manifest.schema), stored
        self._stored = stored or RereadHashes(job.opener)
        self._piece = PIECE if stored else manifest.schema.batch_rows(BATCH_BYTES)
        self._pending: list[tuple[Index, Any]] = []  # rows and hashes that were not compared yet
        self._pending_rows = self._compared = self._known = 0  # and those of the compared with a stored hash
        self._padding = self._left = self._batches = 0
        self._ragged = RaggedCheck(manifest.schema, job.collate)

    def expect(self, request: EpochRequest) -> None:
        """Note the rows that will come next."""
        assert not isinstance(request, int), "a map-style loader is given its rows"
        super().expect(request)
        self._padding = self._loader.padding_samples(self._job.order, self._manifest.schema.samples)
        self._left = sample_count(request) - self._padding

    def add(self, batch: DeviceBatch) -> None:
        """Hash a batch; raises WrongContent if a row differs from the stored one."""
        self._batches += 1
        batch = self._ragged.jagged(batch, self._batches)
        hashes: Any = self._check.hashes(batch)
        rows = index_of(next(self._rows, slice(0, 0)))
        if len(rows) != len(hashes):
            problem = f"batch {self._batches:,} has another number of samples"
            counts = {"expected": f"{len(rows):,}", "found": f"{len(hashes):,}"}
            raise WrongContent(problem, kind="wrong-count", **counts)
        own, self._left = min(self._left, len(rows)), max(0, self._left - len(rows))
        self._check.add_hashes(hashes[:own], rows[:own])
        self._pending.append((rows, hashes))
        self._pending_rows += len(rows)
        if self._pending_rows >= self._piece:
            self._compare_rows()

    def conclude(self, part: bool = False) -> ContentCheckPart | None:
        """Return what is to be reported; WrongContent unless all ranks' samples are those of the manifest."""
        self._compare_rows()
        compared, known, padding = map(self._sum, (self._compared, self._known, self._padding))
        if any(self._group.all_gather(part)) and compared < self._manifest.schema.samples + padding:
            return self._ragged.reported(self._partly(known, 0))
        self._compare_batches()
        if known < compared:
            return self._ragged.reported(self._partly(known, padding))
        self._compare_sums()
        return self._ragged.reported(ContentCheckPart(repeated=padding) if padding else None)

    def _partly(self, verified: int, repeated: int) -> ContentCheckPart:
        listed = all(self._group.all_gather(self._list is not None))
        reasons = [] if verified and listed else [NO_HASHES if listed else no_list(self._manifest)]
        return ContentCheckPart(unverified=reasons, verified_samples=verified, repeated=repeated)

    @property
    def _hint(self) -> str:
        return self._manifest.location_of(self._job.opener.format.variant).hint

    def _sum(self, own: int) -> int:
        """Return the sum over all ranks, modulo 2^64."""
        return sum(self._group.all_gather(own)) & MASK

    def _compare_rows(self) -> None:
        """Compare the pending rows; raise WrongContent if a row came with the hash of another, or of none."""
        if not self._pending:
            return
        parts, hashes_of_parts = zip(*self._pending, strict=True)
        self._pending, self._pending_rows = [], 0
        rows: Index = np.concatenate(parts)
        hashes: Index = torch.cat(hashes_of_parts).cpu().numpy()
        self._compared += len(rows)
        known = self._stored.known(rows)
        rows, hashes = rows[known], hashes[known]
        self._known += len(rows)
        wrong = np.flatnonzero(self._stored.of(rows) != hashes)
        if not len(wrong):
            return
        row, other = int(rows[wrong[0]]), int(hashes[wrong[0]])
        for rows, hashes in kept_hashes(self._list, self._manifest.schema.samples) if self._list else ():
            others = rows[hashes == other]
            if len(others):
                problem = "samples reached the device in another order than requested"
                rows_of = {"expected": f"row {row}", "found": f"row {others[0]}"}
                raise WrongContent(problem, kind="wrong-order", **rows_of, hint=self._hint)
        problem = f"wrong content on the device: row {row} differs from the stored one"
        raise WrongContent(problem, kind="wrong-row", hint=self._hint)

    def _compare_sums(self) -> None:
        """Raise WrongContent unless all ranks together delivered each sample once, in the requested order."""
        expected = self._manifest.checksums_of(self._job.opener.format.variant)
        found = self._sum(self._check.content), self._sum(self._check.ordered)
        if found != expected:
            content = found[0] != expected[0]
            raise WrongContent(
                "wrong content on the device" if content else "samples of the ranks are mixed up",
                kind="wrong-content" if content else "wrong-order",
                expected=f"checksum {expected[not content]:016x}",
                found=f"{found[not content]:016x}",
                hint=self._hint,
            )

    def _compare_batches(self) -> None:
        """Raise WrongContent if ranks have different numbers of batches, which would deadlock training."""
        counts = self._group.all_gather(self._batches)
        few, most = min(counts), max(counts)
        if few != most:
            raise WrongContent(
                "ranks had different numbers of batches in an epoch",
                kind="uneven-batches",
                expected=f"{most} as on rank {counts.index(most)}",
                found=f"{few} on rank {counts.index(few)}",
            )


class CoverageCheck(BatchCheck):
    """Checks that an iterable-style loader delivers each sample once; in a part, none twice.

    Excepted are those that it declares to drop or to repeat.
    """

    def __init__(self, loader: Loader, job: Job, manifest: Manifest, stored: SampleHashes | None) -> None:
        self._loader, self._order, self._manifest, self._list = loader, job.order, manifest, stored
        self._check, self._hashes = Checksum(manifest.schema), list[Hashes]()
        self._ragged = RaggedCheck(manifest.schema, job.collate)

    def add(self, batch: DeviceBatch) -> None:
        """Hash a batch."""
        hashes: Any = self._check.hashes(self._ragged.jagged(batch, len(self._hashes) + 1))
        self._hashes.append(hashes.cpu().numpy())

    def conclude(self, part: bool = False) -> ContentCheckPart | None:
        """Return what came; WrongContent unless only the dataset's samples did, as often as declared."""
        loader, samples = self._loader, self._manifest.schema.samples
        if self._list is None:
            return self._ragged.reported(ContentCheckPart(unverified=[no_list(self._manifest)]))
        cover = SampleCoverage(self._list, samples, self._hashes)
        whole = cover.is_whole(part)
        dropped = cover.dropped if whole else 0
        lost = dropped if not loader.drops or dropped == samples else 0
        twice = 0 if loader.repeats else cover.repeated
        if lost or twice or cover.foreign:
            raise WrongContent(
                "wrong content on the device",
                kind="wrong-samples",
                expected=f"{'each of' if whole else 'some of'} {samples:,} samples once",
                found=f"{f'{dropped:,} missing, ' if whole else ''}{cover.repeated:,} repeated, "
                f"{cover.foreign:,} that are not the dataset's",
            )
        random = self._order.kind != "sequential"
        came = ContentCheckPart(
            unverified=[] if cover.verified else [NO_HASHES],
            verified_samples=None if whole else cover.verified,
            dropped=dropped,
            repeated=cover.repeated,
            in_order=None if random else cover.in_order,
            shuffle_quality=cover.shuffle_quality(self._order.block_rows) if random else None,
        )
        return self._ragged.reported(came)


class PixelCheck(BatchCheck):
    """Compares each requested row with what the format decodes, which is read again.

    Arrays of bytes may differ by a tolerance, the other fields may not. The case is reported as not verified,
    with the largest difference, because no checksum of such pixels is known.
    """

    def __init__(self, job: Job, tolerance: int) -> None:
        self._job, self._tolerance, self._most = job, tolerance, 0

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


class UserLoaderCheck(BatchCheck):
    """Compares the batches of an epoch, or a part of one, with the manifest, and reports what is unverified.

    If batches hold the dataset's fields, every sample is hashed and compared. Otherwise the case is
    measured as not verified. In a part, samples that have not come are not missed. A list of hashes that is
    missing is made if that takes no longer than `seconds`.
    """

    def __init__(self, case: Case, manifest: Manifest, seconds: float = math.inf) -> None:
        self._case, self._manifest, self._seconds = case, manifest, seconds
        self._check, self._schema = Checksum(manifest.schema), manifest.schema
        self._hashes: list[Hashes] = []
        self._other: str | None = None  # difference between its batches and the dataset's fields
        self._largest = 0

    def add(self, batch: DeviceBatch) -> None:
        """Hash a batch, if it holds the dataset's fields.

        Raises TargetError if a training step needs fields that it does not hold.
        """
        self._largest = max(self._largest, *(int(one.shape[0]) for one in batch.values() if one.ndim), 0)
        if self._other is not None:
            return
        types = {name: str(one.dtype).removeprefix("torch.") for name, one in batch.items()}
        held = {name: _kind(types[name], tuple(one.shape[1:])) for name, one in batch.items()}
        fields = {field.name: _kind(field.dtype, field.shape) for field in self._schema.fields}
        if any(held.get(name) != kind for name, kind in fields.items()):
            self._other = f"its batches hold {_listed(held)}, the dataset {_listed(fields)}"
            if trains(self._case.facets):
                problem = f"a training step needs the dataset's fields: {self._other}"
                raise TargetError(problem, kind="untrainable-batches")
            return
        hashes: Any = self._check.hashes(batch)
        self._hashes.append(hashes.cpu().numpy())

    def conclude(self, part: bool = False) -> ContentCheckPart | None:
        """Return why the content is not verified; None if the whole dataset came as requested."""
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


def _kind(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype} {'x'.join(map(str, shape)) or 'scalar'}"


def _listed(kinds: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in kinds.items())
