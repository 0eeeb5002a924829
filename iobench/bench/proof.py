"""The proof of a case: every sample over all its fields, hashed on the device, against the manifest."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.dataset.checksum import Checksum
from iobench.dataset.manifest import Manifest
from iobench.dataset.verify import read_back
from iobench.errors import WrongContent
from iobench.formats import Rows
from iobench.loading.loaders import Asked, Job, Loader
from iobench.loading.transfer import DeviceBatch


class Proof:
    """Sees one epoch's batches on the device, and says at its end whether they were all of the dataset.

    A loader that is told its rows has to give them in that order. One with an order of its own has to
    give each sample once, or at least once where it says that it repeats some.
    """

    def __init__(self, loader: Loader, job: Job, manifest: Manifest, asked: Asked) -> None:
        self._loader, self._job, self._manifest = loader, job, manifest
        self._check = Checksum(manifest.schema)
        self._rows = iter(()) if isinstance(asked, int) else map(_index, asked)
        self._seen: list[npt.NDArray[np.int64]] = []

    def add(self, batch: DeviceBatch) -> None:
        """Hash a batch."""
        if self._loader.repeats:
            hashes: Any = self._check.hashes(batch)
            self._seen.append(hashes.cpu().numpy())
        else:
            self._check.add(batch, next(self._rows, None))

    def conclude(self) -> None:
        """WrongContent where what came is not what the manifest says was written."""
        if self._loader.repeats:
            self._cover()
            return
        expected, ordered = self._manifest.checksums_of(self._job.opener.format.variant)
        found = self._check.content
        if found != expected:
            raise WrongContent(
                f"wrong content on the device: expected checksum {expected:016x}, found {found:016x}; "
                "prepare it again, as it was first prepared, to repair it"
            )
        if not self._loader.own_order and self._check.ordered != ordered:
            raise WrongContent(
                "samples in another order than was asked for reached the device; prepare it again, "
                "as it was first prepared, to repair it"
            )

    def _cover(self) -> None:
        """Every sample at least once, and nothing else."""
        seen = np.unique(np.concatenate(self._seen)) if self._seen else np.empty(0, np.int64)
        check = Checksum(self._manifest.schema)
        written = np.unique(np.concatenate([check.hashes(batch) for batch in read_back(self._job.opener)]))
        missing, foreign = (len(np.setdiff1d(*pair)) for pair in ((written, seen), (seen, written)))
        if missing or foreign:
            raise WrongContent(
                f"wrong content on the device: {missing} samples never came, "
                f"{foreign} are none of the dataset's"
            )


def _index(rows: Rows) -> npt.NDArray[np.int64]:
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
