"""Content check of a case: every sample, over all its fields, hashed on the device.

A row that a map-style loader delivers must have the hash of the stored one. Over a whole epoch, the sums of
the hashes over all ranks must also equal the manifest's checksums: each sample once, in the requested order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from iobench.base.errors import WrongContent
from iobench.base.finding import Finding
from iobench.bench.process_group import ProcessGroup, SingleProcess
from iobench.bench.ragged_check import RaggedCheck
from iobench.bench.sample_coverage import SampleCoverage, kept_hashes
from iobench.dataset.checksum import MASK, Checksum
from iobench.dataset.manifest import Manifest
from iobench.dataset.sample_hashes import RereadHashes, hashes_in_time
from iobench.dataset.sources import BATCH_BYTES
from iobench.formats import Index, Rows, index_of
from iobench.loading.host_to_device import DeviceBatch
from iobench.loading.loaders import EpochRequest, Job, Loader
from iobench.loading.order import sample_count
from iobench.results.parts import ContentCheckPart

PIECE = 1 << 20  # hashes compared at a time: one copy from the device each, so that it is not waited for
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
            raise WrongContent(
                f"batch {self._batches:,} has another number of samples",
                kind="wrong-count",
                expected=f"{len(rows):,}",
                found=f"{len(hashes):,}",
            )
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
                return WrongContent(
                    "samples reached the device in another order than requested",
                    kind="wrong-order",
                    expected=f"row {row}",
                    found=f"row {others[0]}",
                    hint=self._hint,
                )
        return WrongContent(
            f"wrong content on the device: row {row} differs from the stored one",
            kind="wrong-row",
            hint=self._hint,
        )

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
    return Finding(
        "no-list",
        "the list of hashes is missing, and there is no time to read all samples",
        hint=f"run 'iobench verify --name {manifest.name}', which keeps it",
    )
