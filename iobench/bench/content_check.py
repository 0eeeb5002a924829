"""Content check of a case: every sample, over all its fields, hashed on the device.

The sum of the hashes, over all ranks, must equal the manifest's checksum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.base.errors import WrongContent
from iobench.bench.process_group import ProcessGroup, SingleProcess
from iobench.bench.sample_coverage import SampleCoverage
from iobench.dataset.checksum import MASK, Checksum
from iobench.dataset.manifest import Manifest
from iobench.dataset.sample_hashes import sample_hashes
from iobench.formats import Rows
from iobench.loading.host_to_device import DeviceBatch
from iobench.loading.loaders import EpochRequest, Job, Loader
from iobench.loading.order import row_count
from iobench.results.parts import ContentCheckPart


class ContentCheck:
    """Checks that one epoch's batches on the device are the whole dataset.

    A map-style loader must deliver the requested rows in order. An iterable-style loader must deliver each
    sample once, except for those that it declares to drop or repeat. The other ranks of `group` verify
    their shares at the same time.
    """

    def __init__(
        self,
        loader: Loader,
        job: Job,
        manifest: Manifest,
        request: EpochRequest,
        group: ProcessGroup | None = None,
    ) -> None:
        self._loader, self._job, self._manifest = loader, job, manifest
        self._group = group or SingleProcess()
        self._check = Checksum(manifest.schema)
        rows: Sequence[Rows] = () if isinstance(request, int) else request
        self._padding = loader.padding_samples(job.order, manifest.schema.samples) if rows else 0
        self._left = sum(map(row_count, rows)) - self._padding  # rows that only this rank delivers
        self._rows, self._batches = map(_index, rows), 0
        self._hashes: list[npt.NDArray[np.int64]] = []

    def add(self, batch: DeviceBatch) -> None:
        """Hash a batch; raises WrongContent if a padding sample differs from the stored row."""
        self._batches += 1
        if self._loader.iterable_style:
            hashes: Any = self._check.hashes(batch)
            self._hashes.append(hashes.cpu().numpy())
            return
        rows = next(self._rows, None)
        if rows is not None and len(rows) > self._left:
            rows, batch = self._without_padding(rows, batch)
        self._left -= 0 if rows is None else len(rows)
        if rows is None or len(rows):
            self._check.add(batch, rows)

    def conclude(self) -> ContentCheckPart | None:
        """Return the coverage of an iterable-style loader, or the number of padding samples; else None.

        Raises WrongContent if the samples of all ranks together are not those of the manifest.
        """
        if self._loader.iterable_style:
            return self._cover()
        self._compare_batches()
        ordered = self._compare(self._sum(self._check.content))
        if self._sum(self._check.ordered) != ordered:
            raise WrongContent(
                "samples reached the device in another order than requested",
                kind="wrong-order",
                hint=self._hint,
            )
        padding = sum(self._group.all_gather(self._padding))
        return ContentCheckPart(repeated=padding) if padding else None

    @property
    def _hint(self) -> str:
        return self._manifest.location_of(self._job.opener.format.variant).hint

    def _sum(self, own: int) -> int:
        """Return the sum over all ranks, modulo 2^64."""
        return sum(self._group.all_gather(own)) & MASK

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

    def _without_padding(
        self, rows: npt.NDArray[np.int64], batch: DeviceBatch
    ) -> tuple[npt.NDArray[np.int64], DeviceBatch]:
        """Remove padding samples, which another rank hashes, after comparing them with the stored rows."""
        own = self._left
        padding = {name: tensor[own:] for name, tensor in batch.items()}
        with self._job.opener() as reader:
            stored = self._check.hashes(reader.batch(rows[own:]))
        if not np.array_equal(stored, self._check.hashes(padding).cpu().numpy()):
            raise WrongContent(
                f"wrong content on the device: row {rows[own]} differs from the stored one",
                kind="wrong-row",
                hint=self._hint,
            )
        return rows[:own], {name: tensor[:own] for name, tensor in batch.items()}

    def _compare(self, actual: int) -> int | None:
        """Return the manifest's ordered checksum; raises WrongContent if the unordered one differs."""
        expected, ordered = self._manifest.checksums_of(self._job.opener.format.variant)
        if actual != expected:
            raise WrongContent(
                "wrong content on the device",
                expected=f"checksum {expected:016x}",
                found=f"{actual:016x}",
                hint=self._hint,
            )
        return ordered

    def _cover(self) -> ContentCheckPart:
        """Check that every sample was delivered, and no other, as often as the loader declares."""
        loader = self._loader
        stored = sample_hashes(self._manifest, self._job.opener.format.variant)
        cover = SampleCoverage(stored.of(slice(0, self._manifest.schema.samples)), self._hashes)
        lost = 0 if loader.drops else cover.dropped
        twice = 0 if loader.repeats else cover.repeated
        if lost or twice or cover.foreign or cover.dropped == self._manifest.schema.samples:
            raise WrongContent(
                "wrong content on the device",
                kind="wrong-samples",
                expected=f"each of {self._manifest.schema.samples:,} samples once",
                found=f"{cover.dropped:,} missing, {cover.repeated:,} repeated, "
                f"{cover.foreign:,} that are not the dataset's",
            )
        order = self._job.order
        return ContentCheckPart(
            dropped=cover.dropped,
            repeated=cover.repeated,
            in_order=cover.in_order if order.kind == "sequential" else None,
            shuffle_quality=None if order.kind == "sequential" else cover.shuffle_quality(order.block_rows),
        )


def _index(rows: Rows) -> npt.NDArray[np.int64]:
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
