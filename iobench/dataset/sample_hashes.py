"""Hashes of an artifact's samples, cached with its indexes: 8 bytes per sample.

The first check that needs them reads the artifact once. A list is stored and returned only if its sums are
the manifest's checksums, so it certifies itself. A stored list that is missing, damaged, or of files that
were touched since is built again (see `index_cache`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from iobench.dataset.checksum import Checksum
from iobench.dataset.manifest import Manifest, Opener
from iobench.dataset.verify import compare, read_back

NAME = "hashes"  # of the index
PIECE = 1 << 20  # hashes summed at a time


def sample_hashes(manifest: Manifest, variant: str) -> npt.NDArray[np.int64]:
    """Return the hash of each sample of an artifact, in stored order.

    Raises WrongContent if the stored samples, or a stored list, do not make the manifest's checksums.
    """
    opener, expected = manifest.opener(variant), manifest.checksums_of(variant)
    hint = manifest.location_of(variant).hint

    def build() -> dict[str, npt.NDArray[np.int64]]:
        hashes, check = _read(opener)
        compare(expected, opener.path, check, hint)  # before it is stored
        return {NAME: hashes}

    hashes = opener.index_cache(NAME, build)[NAME]
    check = Checksum(manifest.schema)
    for low in range(0, len(hashes), PIECE):
        check.add_hashes_in_order(np.asarray(hashes[low : low + PIECE]))
    compare(expected, opener.path, check, hint)
    return np.asarray(hashes)


def _read(opener: Opener) -> tuple[npt.NDArray[np.int64], Checksum]:
    """Read an artifact; return the hash of each sample, and their checksum."""
    check, done = Checksum(opener.schema), 0
    hashes = np.empty(opener.schema.samples, np.int64)
    for batch in read_back(opener):
        some = check.add_in_order(batch)
        hashes[done : done + len(some)] = some
        done += len(some)
    return hashes, check
