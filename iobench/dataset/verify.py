"""Rereading artifacts against the manifest."""

from __future__ import annotations

import contextlib
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
    IobenchError,
    WrongContent,
    corrupt,
)
from iobench.base.text import reason
from iobench.dataset.checksum import Checksum
from iobench.dataset.manifest import Manifest, Opener, unusable
from iobench.dataset.sources import BATCH_BYTES
from iobench.formats import Batch
from iobench.host.bus_errors import guarded

READER_BYTES = 256 << 20  # read through one reader: its mapped pages count as memory until it closes

Progress = Callable[[str, int, int], None]  # (what, bytes done, bytes in all)
Report = Callable[[int, int], None]  # the same of what is known


def silent(what: str, done: int, total: int) -> None:
    """Report no progress."""


def verify(
    manifest: Manifest,
    variants: Sequence[str] = (),
    *,
    progress: Progress = silent,
    leave_out: Callable[[str], None] = lambda sentence: None,
) -> dict[str, str | None]:
    """What is wrong with each artifact (all of them by default): None where it is intact.

    Where none is named, those whose library is not installed are left out, and said to `leave_out`.
    UnknownFormat or InvalidOption where a variant is none.
    """
    found: dict[str, str | None] = {}
    missing = {} if variants else unusable(manifest)
    for error in missing.values():
        leave_out(str(error))
    named = [formats.parse(v).variant for v in variants] or list(manifest.artifacts)
    for variant in (one for one in named if one not in missing):
        found[variant] = problem_of(manifest, variant, progress)
    return found


def problem_of(manifest: Manifest, variant: str, progress: Progress = silent) -> str | None:
    """What is wrong with an artifact that is reread in order; None where it is intact."""
    try:
        verify_artifact(manifest, variant, progress)
    except IobenchError as error:
        return str(error)
    return None


def verify_artifact(manifest: Manifest, variant: str, progress: Progress = silent) -> None:
    """Reread an artifact in order; WrongContent or CorruptArtifact where it differs from the manifest.

    Files touched since they were verified are read by a child process, because a library may
    abort on what it finds in a damaged page.
    """
    opener, place = manifest.opener(variant), manifest.place_of(variant)
    # a library that must not be forked is not one that aborts
    here = manifest.unchanged(variant) or not opener.format.forkable
    read = content_of if here else _content_in_child
    with place.advising(), _readable(opener.path):
        found = read(opener, lambda done, total: progress(f"verifying {variant}", done, total))
    compare(manifest.checksums_of(variant), opener.path, found, place.repair)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn an OSError of the disk under an artifact into CorruptArtifact."""
    try:
        yield
    except IobenchError:  # some of which are an OSError, too
        raise
    except OSError as error:
        file = Path(str(error.filename or path))
        raise corrupt(file, "a file that can be read", error.strerror or reason(error)) from error


def content_of(opener: Opener, report: Report = lambda done, total: None) -> Checksum:
    """The checksum of an artifact, read back in order through its reader."""
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
    # forked: a spawned child would need the caller's main module to be importable
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_discard_stderr) as pool:
        try:
            found = pool.submit(content_of, opener).result()
        except BrokenProcessPool as error:
            raise corrupt(
                opener.path, "an artifact that can be read", "damage that ended its reader"
            ) from error
    report(opener.schema.logical_bytes, opener.schema.logical_bytes)
    return found


def _discard_stderr() -> None:
    """Keep what a library says before it aborts off the terminal: the error says it in one line."""
    faulthandler.disable()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def compare(expected: tuple[int, int], folder: Path, found: Checksum, repair: str = REPREPARE) -> None:
    """Raise WrongContent where the checksums, that in order too, of what is in a folder are others."""
    if (found.content, found.ordered) == expected:
        return
    content = expected[0]
    what = "samples in another order" if found.content == content else "other content"
    raise WrongContent(
        f"{folder}: {what}: expected checksum {content:016x}, found {found.content:016x}; {repair}"
    )


def read_back(opener: Opener, rows: int | None = None) -> Iterator[Batch]:
    """All samples in order, in fresh arrays; reopens the reader now and then to give mapped pages back.

    `rows`: of each batch, by default as many as make BATCH_BYTES. OSError where the disk fails, under a
    map too.
    """
    schema = opener.schema
    rows = rows or schema.batch_rows(BATCH_BYTES)
    starts = iter(range(0, schema.samples, rows))
    per_reader = max(1, READER_BYTES // (rows * schema.sample_bytes))
    while some := list(itertools.islice(starts, per_reader)):
        with guarded(opener.path) as check, opener() as reader:
            check()
            for start in some:
                batch = reader.batch(slice(start, start + rows))
                check()
                yield batch
