"""Content checks: every sample that a case delivers is hashed, and compared with the dataset's hashes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from iobench.base.errors import WrongContent
from iobench.base.finding import Finding
from iobench.bench.process_group import ProcessGroup, SingleProcess
from iobench.dataset.checksum import MASK, Checksum
from iobench.dataset.manifest import Manifest
from iobench.dataset.sources import BATCH_BYTES
from iobench.dataset.verify import RereadHashes, SampleHashes, hashes_in_time
from iobench.formats import Field, Index, Ragged, Rows, Schema, index_of
from iobench.loading.collate import COLLATED, JAGGED, LIST, Collate, Dense, SampleList
from iobench.loading.host_to_device import DeviceBatch
from iobench.loading.loaders import EpochRequest, Job, Loader
from iobench.loading.order import sample_count, shuffle_quality
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

    @property
    def figures(self) -> dict[str, Any]:
        """Fields of ContentCheckPart: share of real elements, quantiles of lengths; none without elements."""
        if not self._padded_bytes:
            return {}
        median, high = np.quantile(np.concatenate(self._lengths), (0.5, 0.99)).tolist()
        return {"fill": self._real_bytes / self._padded_bytes, "length_p50": median, "length_p99": high}

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


class ContentCheck:
    """Checks that the batches of an epoch, or of a part of one, are the dataset's samples on the device.

    A map-style loader must deliver the requested rows in order. An iterable-style loader must deliver each
    sample once, except for those that it declares to drop or repeat; in a part, none twice. The other ranks
    of `group` verify their shares at the same time.

    If no list of hashes was kept, and it cannot be made in `seconds`, the rows of a map-style loader are
    compared with the stored rows, which are read again. That verifies a whole epoch, by the sums, but no
    part.
    """

    def __init__(
        self,
        loader: Loader,
        job: Job,
        manifest: Manifest,
        group: ProcessGroup | None = None,
        seconds: float = math.inf,
    ) -> None:
        self._loader, self._job, self._manifest = loader, job, manifest
        self._group = group or SingleProcess()
        self._check = Checksum(manifest.schema)
        self._list = hashes_in_time(manifest, job.opener.format.variant, seconds)
        self._stored = self._list or RereadHashes(job.opener)
        self._piece = PIECE if self._list else manifest.schema.batch_rows(BATCH_BYTES)
        self._rows: Iterator[Rows] = iter(())
        self._padding = self._left = self._batches = self._compared = self._known = 0
        self._ragged = RaggedCheck(manifest.schema, job.collate)
        self._pending: list[tuple[Index, Any]] = []  # rows and hashes that were not compared yet
        self._pending_rows = 0
        self._hashes: list[Index] = []  # of an iterable-style loader

    def expect(self, request: EpochRequest) -> None:
        """Note the rows that will come next; call it before the first batch."""
        if isinstance(request, int):
            return
        self._padding = self._loader.padding_samples(self._job.order, self._manifest.schema.samples)
        self._rows, self._left = iter(request), sample_count(request) - self._padding

    def add(self, batch: DeviceBatch) -> None:
        """Hash a batch; raises WrongContent if a row differs from the stored one."""
        self._batches += 1
        batch = self._ragged.jagged(batch, self._batches)
        hashes: Any = self._check.hashes(batch)
        if self._loader.iterable_style:
            self._hashes.append(hashes.cpu().numpy())
            return
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
        """Return what is to be reported; None if the whole dataset, of fixed shapes, came as requested.

        `part` tells that the epoch was cut, so that not all samples came. Raises WrongContent if the samples
        of all ranks together are not those of the manifest.
        """
        found = self._compare_epoch(part)
        figures = self._ragged.figures
        return replace(found or ContentCheckPart(), **figures) if figures else found

    def _compare_epoch(self, part: bool) -> ContentCheckPart | None:
        """Compare what is known only at the end; return what is to be reported of the samples that came."""
        if self._loader.iterable_style:
            return self._cover(part)
        self._compare_rows()
        compared, known, padding = map(self._sum, (self._compared, self._known, self._padding))
        if any(self._group.all_gather(part)) and compared < self._manifest.schema.samples + padding:
            return self._partly(known, 0)
        self._compare_batches()
        if known < compared:
            return self._partly(known, padding)
        self._compare_sums()
        return ContentCheckPart(repeated=padding) if padding else None

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
        """Compare the pending hashes with those of their rows; WrongContent at the first difference."""
        if not self._pending:
            return
        parts, hashes_of_parts = zip(*self._pending, strict=True)
        self._pending.clear()
        self._pending_rows = 0
        rows: Index = np.concatenate(parts)
        hashes: Index = torch.cat(hashes_of_parts).cpu().numpy()
        self._compared += len(rows)
        known = self._stored.known(rows)
        rows, hashes = rows[known], hashes[known]
        self._known += len(rows)
        wrong = np.flatnonzero(self._stored.of(rows) != hashes)
        if len(wrong):
            raise self._wrong_row(int(rows[wrong[0]]), int(hashes[wrong[0]]))

    def _wrong_row(self, row: int, found: int) -> WrongContent:
        """Return the error for a row that came with the hash of another row, or of none."""
        samples = self._manifest.schema.samples
        for rows, hashes in kept_hashes(self._list, samples) if self._list else ():
            others = rows[hashes == found]
            if len(others):
                problem = "samples reached the device in another order than requested"
                rows_of = {"expected": f"row {row}", "found": f"row {others[0]}"}
                return WrongContent(problem, kind="wrong-order", **rows_of, hint=self._hint)
        problem = f"wrong content on the device: row {row} differs from the stored one"
        return WrongContent(problem, kind="wrong-row", hint=self._hint)

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

    def _cover(self, part: bool) -> ContentCheckPart:
        """Check that only samples of the dataset came, each as often as the loader declares."""
        loader, order, samples = self._loader, self._job.order, self._manifest.schema.samples
        if self._list is None:
            return ContentCheckPart(unverified=[no_list(self._manifest)])
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
        return ContentCheckPart(
            unverified=[] if cover.verified else [NO_HASHES],
            verified_samples=None if whole else cover.verified,
            dropped=dropped,
            repeated=cover.repeated,
            in_order=cover.in_order if order.kind == "sequential" else None,
            shuffle_quality=None if order.kind == "sequential" else cover.shuffle_quality(order.block_rows),
        )


def no_list(manifest: Manifest) -> Finding:
    """Return the reason for a part that was compared with nothing that was kept."""
    message = "the list of hashes is missing, and there is no time to read all samples"
    return Finding("no-list", message, f"run 'iobench verify --name {manifest.name}', which keeps it")
