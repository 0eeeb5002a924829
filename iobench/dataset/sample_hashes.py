"""Hashes of an artifact's samples, cached with its indexes: 8 bytes per sample.

The first check that needs them reads the artifact once. A list is stored and returned only if its sums are
the manifest's checksums, so it certifies itself. A stored list that is missing, damaged, or of files that
were touched since is built again (see `index_cache`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from iobench.dataset.checksum import Checksum
from iobench.dataset.manifest import Manifest
from iobench.dataset.verify import compare, read_back
from iobench.formats import Rows

NAME = "hashes"  # of the index
PIECE = 1 << 20  # hashes summed at a time


class SampleHashes:
    """Hashes of one artifact's samples, memory-mapped; see `sample_hashes`."""

    def __init__(self, hashes: npt.NDArray[np.int64]) -> None:
        self._hashes = hashes

    def of(self, rows: Rows) -> npt.NDArray[np.int64]:
        """Return the hashes of rows that are `known`; of a slice, a view of the list."""
        return np.asarray(self._hashes[rows])

    def known(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return for each row whether its hash was kept."""
        return np.ones(len(self._hashes[rows]), bool)


def sample_hashes(manifest: Manifest, variant: str) -> SampleHashes:
    """Return the hashes of an artifact's samples.

    Raises WrongContent if the stored samples, or a stored list, do not make the manifest's checksums.
    """
    opener, hasher = manifest.opener(variant), Checksum(manifest.schema)

    def build() -> dict[str, npt.NDArray[np.int64]]:
        hashes = np.concatenate([hasher.hashes(batch) for batch in read_back(opener)])
        _certify(hashes, manifest, variant)  # before it is stored
        return {NAME: hashes}

    hashes = opener.index_cache(NAME, build)[NAME]
    _certify(hashes, manifest, variant)
    return SampleHashes(hashes)


def _certify(hashes: npt.NDArray[np.int64], manifest: Manifest, variant: str) -> None:
    """Raise WrongContent if hashes in stored order do not make the manifest's checksums."""
    check = Checksum(manifest.schema)
    for low in range(0, len(hashes), PIECE):
        check.add_hashes_in_order(np.asarray(hashes[low : low + PIECE]))
    place = manifest.location_of(variant)
    compare(manifest.checksums_of(variant), manifest.opener(variant).path, check, place.hint)
