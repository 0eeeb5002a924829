"""Verification of artifacts: reread them and compare with the manifest."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from iobench import formats
from iobench.base.errors import (
    REPREPARE,
    CorruptArtifact,
    IobenchError,
    MissingDependency,
    SourceError,
    WrongContent,
)
from iobench.base.files import system_errors_as
from iobench.dataset import sandbox
from iobench.dataset.checksum import Checksum
from iobench.dataset.hashed_rows import HashedRows
from iobench.dataset.manifest import READ_BYTES_PER_S, Manifest, missing_libraries
from iobench.dataset.read_back import Report, compare, stored_hashes
from iobench.dataset.sample_hashes import Hashes, HashWriter, kept_hashes
from iobench.dataset.untrusted_data import UntrustedData
from iobench.formats import Index

SAMPLE_S = 120.0  # longest reading of a sample of the rows

Progress = Callable[[str, int, int], None]  # (activity, bytes done, bytes in total)


def no_progress(activity: str, done: int, total: int) -> None:
    """Ignore a report of progress."""


def verify(
    manifest: Manifest,
    variants: Sequence[str] = (),
    *,
    sample_bytes: int | None = None,
    progress: Progress = no_progress,
    on_skip: Callable[[MissingDependency], None] = lambda error: None,
) -> dict[str, IobenchError | None]:
    """Reread artifacts and compare them with the manifest.

    Parameters
    ----------
    manifest : Manifest
        The dataset.
    variants : sequence of str
        Variants to verify; all by default, except those whose library is not installed.
    sample_bytes : int, optional
        Read rows of this size, spread over the dataset, for at most SAMPLE_S; by default all hashed rows.
    progress : callable
        Called with the activity, the bytes done and the bytes in total.
    on_skip : callable
        Called with the error of each variant that is skipped for its missing library.

    Returns
    -------
    dict of str to IobenchError or None
        The damage of each variant; None if it is intact.

    Raises
    ------
    UnknownFormat, InvalidOption
        If a name is not a variant.
    """
    missing = {} if variants else missing_libraries(manifest)
    for error in missing.values():
        on_skip(error)
    named = [formats.parse(v).variant for v in variants] or list(manifest.artifacts)
    present = [variant for variant in named if variant not in missing]
    return {variant: _damage(manifest, variant, progress, sample_bytes) for variant in present}


def _damage(
    manifest: Manifest, variant: str, progress: Progress, sample_bytes: int | None
) -> IobenchError | None:
    """Reread an artifact in order and return its damage; None if it is intact."""
    try:
        verify_artifact(manifest, variant, progress, sample_bytes)
    except IobenchError as error:
        return error.changed()
    return None


def verify_in_time(manifest: Manifest, variant: str, seconds: float) -> None:
    """Reread an artifact as `verify_artifact`, or a sample of its rows if all would take longer.

    A sample needs kept hashes: without them raises WrongContent of kind `no-hashes`.
    """
    sample = None if manifest.fits(seconds) else int(seconds * READ_BYTES_PER_S)
    verify_artifact(manifest, variant, sample_bytes=sample, seconds=seconds)


def verify_artifact(
    manifest: Manifest,
    variant: str,
    progress: Progress = no_progress,
    sample_bytes: int | None = None,
    seconds: float | None = None,
) -> None:
    """Reread an artifact; raises WrongContent or CorruptArtifact if it differs from the manifest.

    The first wrong row is named if the hashes of the samples were kept; otherwise they are kept now. Reading
    ends after `seconds`, by default without an end, or after SAMPLE_S of a sample.
    """
    opener, location = manifest.opener(variant), manifest.location_of(variant)
    errors = system_errors_as(
        CorruptArtifact, "cannot be read", opener.path, kind="read-error", hint=REPREPARE
    )
    with location.hinting(), errors:
        report = partial(progress, f"verifying {variant}")
        content = _reread(manifest, variant, sample_bytes, report, _seconds(sample_bytes, seconds))
    if content.wrong:
        content.refuse(manifest, variant)
    if sample_bytes is None and not content.ended:
        compare(manifest.checksums_of(variant), opener.path, content.check, location.hint)


@dataclass
class _Content:
    """Checksum of what was read, number of samples unlike their kept hash, and the first of them."""

    check: Checksum
    wrong: int = 0
    first: int = 0
    ended: bool = False  # by the time

    def refuse(self, manifest: Manifest, variant: str) -> None:
        """Raise WrongContent that names the first wrong row."""
        moved = self.check.content == manifest.checksums_of(variant)[0]
        location = manifest.location_of(variant)
        raise WrongContent(
            "samples in another order" if moved else "other content",
            kind="other-order" if moved else "other-content",
            path=location.path,
            expected=f"row {self.first:,} as it was hashed",
            found=f"{self.wrong:,} of {self.check.samples:,} samples differ, this one first",
            hint=location.hint,
        )


def sampled_rows(manifest: Manifest, sample_bytes: int) -> HashedRows:
    """Return hashed rows of about that size, spread over the dataset."""
    hashed = manifest.hashed
    sample = HashedRows.part_of(manifest.schema, sample_bytes)
    if manifest.part is None:
        return sample
    return replace(hashed, pieces=min(hashed.pieces, sample.pieces))


def _seconds(sample_bytes: int | None, seconds: float | None) -> float:
    if seconds is not None:
        return seconds
    return math.inf if sample_bytes is None else SAMPLE_S


def _no_hashes(manifest: Manifest, variant: str) -> WrongContent:
    return WrongContent(
        "the hashes of its samples were not kept",
        kind="no-hashes",
        path=manifest.path_of(variant),
        hint=f"run 'iobench verify --name {manifest.name}', which reads all and keeps them",
    )


def _reread(
    manifest: Manifest, variant: str, sample_bytes: int | None, report: Report, seconds: float
) -> _Content:
    """Read an artifact, or a sample of its rows, and compare it with its kept hashes if there are any."""
    kept, end = kept_hashes(manifest, variant), time.monotonic() + seconds
    if sample_bytes is not None and kept is None:
        raise _no_hashes(manifest, variant)
    hashed = manifest.hashed if sample_bytes is None else sampled_rows(manifest, sample_bytes)
    content = _Content(Checksum(manifest.schema))
    with HashWriter.temporary(manifest.root) as writer:
        for rows, hashes in _hashes(manifest, variant, hashed, report):
            content.check.add_hashes(hashes, rows)
            if kept is None:
                writer.append(hashes)
            elif (wrong := np.flatnonzero(hashes != kept.of(rows))).size:
                first = int(rows[wrong[0]])
                content.first = min(content.first, first) if content.wrong else first
                content.wrong += len(wrong)
            if time.monotonic() > end and content.check.samples < hashed.count:
                content.ended = True
                break
        if kept is None and content.ended:
            raise _no_hashes(manifest, variant)
        if kept is None and manifest.checksums_of(variant) == (content.check.content, content.check.ordered):
            writer.keep(manifest, variant)
    return content


def _hashes(
    manifest: Manifest, variant: str, hashed: HashedRows, report: Report
) -> Iterator[tuple[Index, Hashes]]:
    """Yield rows and their hashes as `stored_hashes`.

    Files touched since they were verified are read in the sandbox: libraries may abort on a damaged page.
    """
    opener = manifest.opener(variant)
    if manifest.unchanged(variant):
        yield from stored_hashes(opener, hashed, report)
        return
    data = UntrustedData(opener.path, variant, manifest.artifacts[variant].stored_bytes)
    try:
        yield from sandbox.hashes(data, manifest.schema, hashed, report)
    except SourceError as error:
        raise error.converted(CorruptArtifact).changed(hint=REPREPARE) from error
