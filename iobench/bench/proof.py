"""The proof of a case: every sample over all its fields, hashed on the device, against the manifest."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.bench.coverage import Coverage
from iobench.dataset.checksum import Checksum
from iobench.dataset.manifest import Manifest
from iobench.dataset.verify import read_back
from iobench.errors import WrongContent
from iobench.formats import Rows
from iobench.loading.loaders import Asked, Job, Loader
from iobench.loading.transfer import DeviceBatch
from iobench.results.parts import ProofPart


class Proof:
    """Sees one epoch's batches on the device, and says at its end whether they were all of the dataset.

    A loader that is told its rows has to give them in that order. One with an order of its own has to
    give each sample once, save what it says that it drops or repeats.
    """

    def __init__(self, loader: Loader, job: Job, manifest: Manifest, asked: Asked) -> None:
        self._loader, self._job, self._manifest = loader, job, manifest
        self._check = Checksum(manifest.schema)
        self._rows = iter(()) if isinstance(asked, int) else map(_index, asked)
        self._seen: list[npt.NDArray[np.int64]] = []

    def add(self, batch: DeviceBatch) -> None:
        """Hash a batch."""
        if self._loader.own_order:
            hashes: Any = self._check.hashes(batch)
            self._seen.append(hashes.cpu().numpy())
        else:
            self._check.add(batch, next(self._rows, None))

    def conclude(self) -> ProofPart | None:
        """What a loader's own order was found to be; None where it was told its rows.

        WrongContent where what came is not what the manifest says was written.
        """
        if self._loader.own_order:
            return self._cover()
        ordered = self._compare(self._check)
        if self._check.ordered != ordered:
            raise WrongContent(
                "samples in another order than was asked for reached the device; prepare it again, "
                "as it was first prepared, to repair it"
            )
        return None

    def _compare(self, check: Checksum) -> int | None:
        """The manifest's sum with rows; WrongContent where the sum over samples is not the manifest's."""
        expected, ordered = self._manifest.checksums_of(self._job.opener.format.variant)
        found = check.content
        if found != expected:
            raise WrongContent(
                f"wrong content on the device: expected checksum {expected:016x}, found {found:016x}; "
                "prepare it again, as it was first prepared, to repair it"
            )
        return ordered

    def _cover(self) -> ProofPart:
        """Every sample, and nothing else, as often as the loader says."""
        check, loader = Checksum(self._manifest.schema), self._loader
        cover = Coverage(np.concatenate(list(map(check.take, read_back(self._job.opener)))), self._seen)
        self._compare(check)  # what was read back to compare with is itself what was written
        lost = 0 if loader.drops else cover.dropped
        twice = 0 if loader.repeats else cover.repeated
        if lost or twice or cover.foreign or cover.dropped == self._manifest.schema.samples:
            raise WrongContent(
                f"wrong content on the device: {cover.dropped} samples never came, "
                f"{cover.repeated} came once more, {cover.foreign} are none of the dataset's"
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
