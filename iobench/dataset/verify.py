"""Verification of artifacts: reread them and compare with the manifest."""

from __future__ import annotations

import faulthandler
import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from iobench import formats
from iobench.base.errors import (
    REPREPARE,
    CorruptArtifact,
    IobenchError,
    MissingDependency,
    WrongContent,
    corrupt,
)
from iobench.base.files import system_errors_as
from iobench.dataset.checksum import Checksum
from iobench.dataset.manifest import Manifest, Opener, missing_libraries
from iobench.dataset.sources import BATCH_BYTES
from iobench.formats import Batch

READER_BYTES = 256 << 20  # read through one reader: mapped pages count as its memory until it closes

Progress = Callable[[str, int, int], None]  # (activity, bytes done, bytes in total)
Report = Callable[[int, int], None]  # the same for a known activity


def no_progress(activity: str, done: int, total: int) -> None:
    """Ignore a report of progress."""


def verify(
    manifest: Manifest,
    variants: Sequence[str] = (),
    *,
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
    return {variant: find_damage(manifest, variant, progress) for variant in named if variant not in missing}


def find_damage(manifest: Manifest, variant: str, progress: Progress = no_progress) -> IobenchError | None:
    """Reread an artifact in order and return its damage; None if it is intact."""
    try:
        verify_artifact(manifest, variant, progress)
    except IobenchError as error:
        return error.changed()
    return None


def verify_artifact(manifest: Manifest, variant: str, progress: Progress = no_progress) -> None:
    """Reread an artifact in order; raises WrongContent or CorruptArtifact if it differs from the manifest.

    Files touched since they were verified are read by a child process, because libraries may abort on a
    damaged page.
    """
    opener, location = manifest.opener(variant), manifest.location_of(variant)
    # libraries that cannot be forked do not abort
    here = manifest.unchanged(variant) or not opener.format.forkable
    read = content_of if here else _content_in_child
    errors = system_errors_as(
        CorruptArtifact, "cannot be read", opener.path, kind="read-error", hint=REPREPARE
    )
    with location.hinting(), errors:
        content = read(opener, lambda done, total: progress(f"verifying {variant}", done, total))
    compare(manifest.checksums_of(variant), opener.path, content, location.hint)


def content_of(opener: Opener, report: Report = lambda done, total: None) -> Checksum:
    """Return the checksum of an artifact, read in order through its reader."""
    check, done, total = Checksum(opener.schema), 0, opener.schema.logical_bytes
    report(0, total)
    opener.check()
    for batch in read_back(opener):
        check.add_in_order(batch)
        done += sum(array.nbytes for array in batch.values())
        report(done, total)
    return check


def _content_in_child(opener: Opener, report: Report) -> Checksum:
    report(0, opener.schema.logical_bytes)
    # fork: a spawned child would have to import the caller's main module
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_discard_stderr) as pool:
        try:
            content = pool.submit(content_of, opener).result()
        except BrokenProcessPool as error:
            cause = "damage that crashed its reader"
            raise corrupt(opener.path, "a readable artifact", cause, kind="reader-crashed") from error
    report(opener.schema.logical_bytes, opener.schema.logical_bytes)
    return content


def _discard_stderr() -> None:
    """Hide the last words of a library that aborts: the error has them in one line."""
    faulthandler.disable()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def compare(expected: tuple[int, int], folder: Path, content: Checksum, hint: str = REPREPARE) -> None:
    """Raise WrongContent if content or order of the data in a folder differ from the expected checksums."""
    if (content.content, content.ordered) == expected:
        return
    same = content.content == expected[0]
    raise WrongContent(
        "samples in another order" if same else "other content",
        kind="other-order" if same else "other-content",
        path=folder,
        expected=f"checksum {expected[same]:016x}",
        found=f"{content.ordered if same else content.content:016x}",
        hint=hint,
    )


def read_back(opener: Opener, rows: int | None = None) -> Iterator[Batch]:
    """Yield all samples in order, in new arrays.

    Reopens the reader regularly to release mapped pages. Raises OSError if the disk fails, even under a map.

    Parameters
    ----------
    opener : Opener
        The artifact.
    rows : int, optional
        Samples of a batch; by default as many as make BATCH_BYTES.
    """
    schema = opener.schema
    rows = rows or schema.batch_rows(BATCH_BYTES)
    starts = iter(range(0, schema.samples, rows))
    per_reader = max(1, READER_BYTES // (rows * schema.sample_bytes))
    while some := list(itertools.islice(starts, per_reader)):
        with opener.guarded() as check, opener() as reader:
            check()
            for start in some:
                batch = reader.batch(slice(start, start + rows))
                check()
                yield batch
