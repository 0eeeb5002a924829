"""The proof of a case: every sample over all its fields, hashed on the device, against the manifest.

Over several ranks it is the sum of all their hashes that has to be the manifest's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.base.errors import (
    WrongContent,
)
from iobench.bench.coverage import Coverage
from iobench.bench.peers import Nobody, Peers
from iobench.dataset.checksum import MASK, Checksum
from iobench.dataset.manifest import Manifest
from iobench.dataset.verify import read_back
from iobench.formats import Rows
from iobench.loading.loaders import Asked, Job, Loader
from iobench.loading.order import row_count
from iobench.loading.transfer import DeviceBatch
from iobench.results.parts import ProofPart


class Proof:
    """Sees one epoch's batches on the device, and says at its end whether they were all of the dataset.

    A loader that is told its rows has to give them in that order. One with an order of its own has to
    give each sample once, save what it says that it drops or repeats. The `peers` of one that is told its
    rows prove their shares at the same time.
    """

    def __init__(
        self, loader: Loader, job: Job, manifest: Manifest, asked: Asked, peers: Peers | None = None
    ) -> None:
        self._loader, self._job, self._manifest = loader, job, manifest
        self._peers = peers or Nobody()
        self._check = Checksum(manifest.schema)
        rows: Sequence[Rows] = () if isinstance(asked, int) else asked
        self._again = loader.again(job.order, manifest.schema.samples) if rows else 0
        self._left = sum(map(row_count, rows)) - self._again  # that no other rank is told
        self._rows, self._batches = map(_index, rows), 0
        self._seen: list[npt.NDArray[np.int64]] = []

    def add(self, batch: DeviceBatch) -> None:
        """Hash a batch; WrongContent where a sample that another rank is told, too, is not what is stored."""
        self._batches += 1
        if self._loader.own_order:
            hashes: Any = self._check.hashes(batch)
            self._seen.append(hashes.cpu().numpy())
            return
        rows = next(self._rows, None)
        if rows is not None and len(rows) > self._left:
            rows, batch = self._without_again(rows, batch)
        self._left -= 0 if rows is None else len(rows)
        if rows is None or len(rows):
            self._check.add(batch, rows)

    def conclude(self) -> ProofPart | None:
        """What a loader's own order was found to be, or how many samples several ranks were told; else None.

        WrongContent where what came, to all ranks together, is not what the manifest says was written.
        """
        if self._loader.own_order:
            return self._cover()
        self._compare_batches()
        ordered = self._compare(self._sum(self._check.content))
        if self._sum(self._check.ordered) != ordered:
            raise WrongContent(
                f"samples in another order than was asked for reached the device; {self._repair}"
            )
        again = sum(self._peers.gathered(self._again))
        return ProofPart(repeated=again) if again else None

    @property
    def _repair(self) -> str:
        return self._manifest.place_of(self._job.opener.format.variant).repair

    def _sum(self, own: int) -> int:
        """Of all ranks, modulo 2^64."""
        return sum(self._peers.gathered(own)) & MASK

    def _compare_batches(self) -> None:
        """In training a rank that has more batches than another waits for it for ever."""
        counts = self._peers.gathered(self._batches)
        few, most = min(counts), max(counts)
        if few != most:
            raise WrongContent(
                f"ranks must have equally many batches: rank {counts.index(few)} had {few} in an epoch, "
                f"rank {counts.index(most)} had {most}"
            )

    def _without_again(
        self, rows: npt.NDArray[np.int64], batch: DeviceBatch
    ) -> tuple[npt.NDArray[np.int64], DeviceBatch]:
        """Without what another rank adds to the sum, which is held against what is stored."""
        own = self._left
        again = {name: tensor[own:] for name, tensor in batch.items()}
        with self._job.opener() as reader:
            stored = self._check.hashes(reader.batch(rows[own:]))
        if not np.array_equal(stored, self._check.hashes(again).cpu().numpy()):
            raise WrongContent(
                f"wrong content on the device: row {rows[own]} came otherwise than it is stored; "
                f"{self._repair}"
            )
        return rows[:own], {name: tensor[:own] for name, tensor in batch.items()}

    def _compare(self, found: int) -> int | None:
        """The manifest's sum with rows; WrongContent where the sum over samples is not the manifest's."""
        expected, ordered = self._manifest.checksums_of(self._job.opener.format.variant)
        if found != expected:
            raise WrongContent(
                f"wrong content on the device: expected checksum {expected:016x}, found {found:016x}; "
                f"{self._repair}"
            )
        return ordered

    def _cover(self) -> ProofPart:
        """Every sample, and nothing else, as often as the loader says."""
        check, loader = Checksum(self._manifest.schema), self._loader
        cover = Coverage(np.concatenate(list(map(check.take, read_back(self._job.opener)))), self._seen)
        self._compare(check.content)  # what was read back to compare with is itself what was written
        lost = 0 if loader.drops else cover.dropped
        twice = 0 if loader.repeats else cover.repeated
        if lost or twice or cover.foreign or cover.dropped == self._manifest.schema.samples:
            raise WrongContent(
                "wrong content on the device: of "
                f"{self._manifest.schema.samples:,} samples {cover.dropped:,} never came and "
                f"{cover.repeated:,} came more than once; {cover.foreign:,} that came are not the dataset's"
            )
        order = self._job.order
        return ProofPart(
            dropped=cover.dropped,
            repeated=cover.repeated,
            in_order=cover.in_order if order.kind == "sequential" else None,
            shuffledness=None if order.kind == "sequential" else cover.shuffledness(order.block_rows),
        )


def _index(rows: Rows) -> npt.NDArray[np.int64]:
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
