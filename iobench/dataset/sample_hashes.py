"""Hashes of an artifact's samples, cached with its indexes: 8 bytes per sample.

`prepare` and `add` keep the list from the reading that they do anyway (`HashWriter`). A list is returned only
if its sums are the manifest's checksums, so it certifies itself. One that is missing, damaged, or of other
sums is built again by reading the artifact, if there is time.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from iobench.base.files import TEMPORARY
from iobench.dataset.checksum import Checksum
from iobench.dataset.hashed_rows import HashedRows
from iobench.dataset.index_cache import IndexCache
from iobench.dataset.index_file import IndexFile
from iobench.dataset.manifest import Manifest
from iobench.dataset.opener import Opener
from iobench.dataset.read_back import compare, stored_hashes
from iobench.dataset.sources import BATCH_BYTES
from iobench.formats import Rows, index_of

NAME = "hashes"  # of the index
PIECE = 1 << 20  # hashes summed at a time

Hashes = npt.NDArray[np.int64]


class SampleHashes:
    """Hashes of one artifact's samples, memory-mapped; see `sample_hashes`."""

    def __init__(self, hashes: Hashes, hashed: HashedRows) -> None:
        self._hashes, self.hashed = hashes, hashed

    def of(self, rows: Rows) -> Hashes:
        """Return the hashes of rows that are `known`; of a slice of a whole list, a view."""
        return np.asarray(self._hashes[self.hashed.positions(rows)])

    def known(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return for each row whether its hash was kept."""
        return self.hashed.known(rows)

    def checksum(self, manifest: Manifest) -> Checksum:
        """Return the checksum of all hashes with their rows."""
        check, low = Checksum(manifest.schema), 0
        for part in self.hashed.slices(PIECE):
            hashes = np.asarray(self._hashes[low : low + part.stop - part.start])
            check.add_hashes(hashes, index_of(part)[: len(hashes)])  # fewer make other sums
            low += len(hashes)
        return check


class RereadHashes:
    """Hashes of rows that are read when they are asked for, where no list was kept.

    They say what is stored now, not what was stored when the dataset was made.
    """

    def __init__(self, opener: Opener) -> None:
        self._opener, self._check = replace(opener, random=True), Checksum(opener.schema)

    def of(self, rows: Rows) -> Hashes:
        """Return the hashes of rows."""
        some, piece = index_of(rows), self._opener.schema.batch_rows(BATCH_BYTES)
        hashes = [np.empty(0, np.int64)]
        with self._opener.guarded() as check, self._opener() as reader:
            for low in range(0, len(some), piece):
                hashes.append(np.asarray(self._check.hashes(reader.batch(some[low : low + piece]))))
                check()
        return np.concatenate(hashes)

    def known(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return True for each row."""
        return np.ones(len(index_of(rows)), np.bool_)


class HashWriter:
    """Hashes in the order of the list, written while the samples are read."""

    def __init__(self, root: Path) -> None:
        self._file, self._complete = IndexFile(root, f"{TEMPORARY}{NAME}"), True

    def append(self, hashes: Hashes) -> None:
        """Append the next hashes; on a full disk the list is built later instead."""
        self._complete = self._complete and self._file.append({NAME: hashes})

    def keep(self, manifest: Manifest, variant: str) -> None:
        """Make this the list of an artifact of a dataset."""
        if self._complete:
            _cache(manifest, variant).rename(NAME, self._file)

    @classmethod
    @contextmanager
    def temporary(cls, root: Path) -> Iterator[HashWriter]:
        """Yield a writer in a dataset's folder; at the end its file is removed unless it was kept."""
        writer = cls(root)
        try:
            yield writer
        finally:
            writer._file.close()


def sample_hashes(manifest: Manifest, variant: str, end: float = math.inf) -> SampleHashes:
    """Return the hashes of an artifact's samples.

    Raises WrongContent if the stored samples, or a stored list, do not make the manifest's checksums, and
    TimeoutError if they were not read at the moment `end` of `time.monotonic`.
    """

    def build() -> Iterator[dict[str, Hashes]]:
        check = Checksum(manifest.schema)
        for rows, hashes in stored_hashes(manifest.opener(variant), manifest.hashed):
            check.add_hashes(hashes, rows)
            yield {NAME: hashes}
            if time.monotonic() > end:
                raise TimeoutError
        _certify(check, manifest, variant)  # before it is stored

    return _certified(_cache(manifest, variant)(NAME, build)[NAME], manifest, variant)


def hashes_in_time(manifest: Manifest, variant: str, seconds: float) -> SampleHashes | None:
    """Return the hashes of an artifact's samples; None if no list was kept and reading all takes longer."""
    if (kept := kept_hashes(manifest, variant)) is not None or not manifest.fits(seconds):
        return kept
    with contextlib.suppress(TimeoutError):
        return sample_hashes(manifest, variant, time.monotonic() + seconds)
    return None


def kept_hashes(manifest: Manifest, variant: str) -> SampleHashes | None:
    """Return the hashes of an artifact's samples if a list was kept; raises as `sample_hashes`."""
    kept = _cache(manifest, variant).cached(NAME)
    return None if kept is None else _certified(kept[NAME], manifest, variant)


def _cache(manifest: Manifest, variant: str) -> IndexCache:
    """Return the cache of lists of these sums; the times of the files do not matter."""
    hashed, sums = manifest.hashed, manifest.checksums_of(variant)
    stamp = f"{sums[0]:016x} {sums[1]:016x} {hashed.piece_rows} {hashed.pieces}"
    return IndexCache(manifest.index_path(variant), lambda: stamp)


def _certified(hashes: Hashes, manifest: Manifest, variant: str) -> SampleHashes:
    stored = SampleHashes(hashes, manifest.hashed)
    _certify(stored.checksum(manifest), manifest, variant)
    return stored


def _certify(check: Checksum, manifest: Manifest, variant: str) -> None:
    location = manifest.location_of(variant)
    compare(manifest.checksums_of(variant), location.path, check, location.hint)
