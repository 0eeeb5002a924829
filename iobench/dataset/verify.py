"""Stored samples: read back, their hashes kept, and compared with the manifest.

`prepare` and `add` keep the list from the reading that they do anyway (`HashWriter`). A list is returned only
if its sums are the manifest's checksums, so it certifies itself. One that is missing, damaged, or of other
sums is built again by reading the artifact, if there is time.

Of large data that were added, a part is hashed that is spread over them, and later the rest.

The lengths of samples, 8 bytes each, are kept with the indexes of an artifact, too.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench import formats
from iobench.base.errors import (
    REPREPARE,
    ArtifactExists,
    CorruptArtifact,
    IobenchError,
    LoaderFailed,
    MissingDependency,
    SourceError,
    WrongContent,
    expecting,
)
from iobench.base.files import TEMPORARY
from iobench.base.finding import Finding
from iobench.base.units import bytes_text
from iobench.dataset import sandbox
from iobench.dataset.checksum import Checksum, HashedRows
from iobench.dataset.index_cache import IndexCache, IndexFile
from iobench.dataset.manifest import READ_BYTES_PER_S, Manifest, missing_libraries
from iobench.dataset.opener import Opener
from iobench.dataset.sandbox import UntrustedData
from iobench.dataset.sources.source import BATCH_BYTES
from iobench.formats import Batch, Index, Reader, Rows, Schema, Spans, index_of
from iobench.formats.ragged import check_extents

READER_BYTES = 256 << 20  # read through one reader: mapped pages count as its memory until it closes

Report = Callable[[int, int], None]  # bytes done, bytes in total


def read_back(opener: Opener, rows: int | None = None, hashed: HashedRows | None = None) -> Iterator[Batch]:
    """Yield samples in new arrays.

    Reads the `hashed` rows in their order, by default all, in batches of `rows`, by default of BATCH_BYTES.
    Reopens the reader regularly to release mapped pages. Raises OSError if the disk fails, even under a map,
    and CorruptArtifact for a sample whose extents do not make its length.
    """
    schema = opener.schema
    rows = rows or schema.batch_rows(BATCH_BYTES)
    hashed = hashed or HashedRows.all_of(schema.samples)
    slices = hashed.slices(rows)
    per_reader = max(1, READER_BYTES // (min(rows, hashed.piece_rows) * schema.sample_bytes))
    while some := list(itertools.islice(slices, per_reader)):
        with opener.guarded() as check, opener() as reader:
            check()
            for part in some:
                batch: dict[str, Any] = reader.batch(part)
                check()
                for name, own in schema.extents.items():
                    lengths = np.diff(batch[name].offsets)
                    check_extents(lengths, batch[own], name, opener.path, part.start)
                yield batch


def stored_hashes(
    opener: Opener, hashed: HashedRows, report: Report = lambda done, total: None
) -> Iterator[tuple[Index, npt.NDArray[np.int64]]]:
    """Read rows and yield them with their hashes, in the order of the list; `report` gets the progress."""
    schema, rows = opener.schema, opener.schema.batch_rows(BATCH_BYTES)
    opener.check()
    hashes = map(Checksum(schema).hashes, read_back(opener, rows, hashed))
    yield from hashed.paired(schema, rows, hashes, report)


def compare(expected: tuple[int, int], folder: Path, content: Checksum, hint: str = REPREPARE) -> None:
    """Raise WrongContent if content or order of the data in a folder differ from the expected checksums."""
    if content.sums != expected:
        same = content.content == expected[0]
        sums = f"checksum {expected[same]:016x}", f"{content.sums[same]:016x}"
        raise _wrong(same, folder, *sums, hint)


def _wrong(same: bool, path: Path, expected: str, found: str, hint: str) -> WrongContent:
    """Return the error for other samples than expected, or for the same in another order."""
    problem = "samples in another order" if same else "other content"
    kind = "other-order" if same else "other-content"
    return WrongContent(problem, kind, path, expected=expected, found=found, hint=hint)


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

    return _certified(_cache(manifest, variant)(NAME, build, NAME)[NAME], manifest, variant)


def hashes_in_time(manifest: Manifest, variant: str, seconds: float) -> SampleHashes | None:
    """Return the hashes of an artifact's samples; None if no list was kept and reading all takes longer."""
    if (kept := kept_hashes(manifest, variant)) is not None or not manifest.fits(seconds):
        return kept
    with contextlib.suppress(TimeoutError):
        return sample_hashes(manifest, variant, time.monotonic() + seconds)
    return None


def kept_hashes(manifest: Manifest, variant: str) -> SampleHashes | None:
    """Return the hashes of an artifact's samples if a list was kept; raises as `sample_hashes`."""
    kept = _cache(manifest, variant).cached(NAME, NAME)
    return None if kept is None else _certified(kept[NAME], manifest, variant)


def _cache(manifest: Manifest, variant: str) -> IndexCache:
    """Return the cache of lists of these sums; the times of the files do not matter."""
    hashed, sums = manifest.hashed, manifest.checksums_of(variant)
    stamp = f"{sums[0]:016x} {sums[1]:016x} {hashed.piece_rows} {hashed.pieces}"
    return IndexCache(manifest.index_path(variant), lambda: stamp)


def _certified(hashes: Hashes, manifest: Manifest, variant: str) -> SampleHashes:
    check, low = Checksum(manifest.schema), 0
    for part in manifest.hashed.slices(PIECE):
        some = np.asarray(hashes[low : low + part.stop - part.start])
        check.add_hashes(some, index_of(part)[: len(some)])  # fewer make other sums
        low += len(some)
    _certify(check, manifest, variant)
    return SampleHashes(hashes, manifest.hashed)


def _certify(check: Checksum, manifest: Manifest, variant: str) -> None:
    location = manifest.location_of(variant)
    compare(manifest.checksums_of(variant), location.path, check, location.hint)


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
    damages: dict[str, IobenchError | None] = {v: None for v in named if v not in missing}
    for variant in damages:
        try:
            verify_artifact(manifest, variant, progress, sample_bytes)
        except IobenchError as error:
            damages[variant] = error.changed()
    return damages


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
    hashed, check = manifest.hashed, Checksum(manifest.schema)
    if seconds is None:
        seconds = math.inf if sample_bytes is None else SAMPLE_S
    wrong, first_wrong, ended = 0, 0, False
    reading = expecting(opener.path, "readable files", OSError, "read-error")
    with location.hinting(), reading, HashWriter.temporary(manifest.root) as writer:
        kept, end = kept_hashes(manifest, variant), time.monotonic() + seconds
        if sample_bytes is not None:  # rows of about that size, spread over the dataset
            if kept is None:
                raise _no_hashes(manifest, variant)
            sample = HashedRows.part_of(manifest.schema, sample_bytes)
            part = replace(hashed, pieces=min(hashed.pieces, sample.pieces))
            hashed = sample if manifest.part is None else part
        for rows, hashes in _hashes(manifest, variant, hashed, partial(progress, f"verifying {variant}")):
            check.add_hashes(hashes, rows)
            if kept is None:
                writer.append(hashes)
            elif (unlike := np.flatnonzero(hashes != kept.of(rows))).size:
                row = int(rows[unlike[0]])
                first_wrong = min(first_wrong, row) if wrong else row
                wrong += len(unlike)
            if time.monotonic() > end and check.samples < hashed.count:
                ended = True
                break
        if kept is None and ended:
            raise _no_hashes(manifest, variant)
        if kept is None and manifest.checksums_of(variant) == check.sums:
            writer.keep(manifest, variant)
    if wrong:
        moved = check.content == manifest.checksums_of(variant)[0]
        expected = f"row {first_wrong:,} as it was hashed"
        found = f"{wrong:,} of {check.samples:,} samples differ, this one first"
        raise _wrong(moved, location.path, expected, found, location.hint)
    if sample_bytes is None and not ended:
        _certify(check, manifest, variant)


def _no_hashes(manifest: Manifest, variant: str) -> WrongContent:
    problem = "the hashes of its samples were not kept"
    hint = f"run 'iobench verify --name {manifest.name}', which reads all and keeps them"
    return WrongContent(problem, "no-hashes", manifest.path_of(variant), hint=hint)


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
        if error.kind in sandbox.NOT_ABOUT_DATA:
            raise error.converted(LoaderFailed) from error
        raise error.converted(CorruptArtifact).changed(hint=REPREPARE) from error


WHOLE_BYTES = 20 << 30  # up to this size all rows are hashed
PART_BYTES = 10 << 30  # of larger data, or as much as is read in
PART_S = 110.0  # so that `add` takes about two minutes


def rows_to_hash(before: Manifest | None, schema: Schema, hash: str, part_s: float) -> HashedRows:
    """Return the rows to hash for `--hash`: those of the dataset that the data extend, if there is one.

    Of data that would take more than `part_s` at READ_BYTES_PER_S, a part.
    """
    if before is not None:
        if hash == "full" and before.part is not None:
            hint = f"run 'iobench verify --name {before.name} --hash full' first"
            raise ArtifactExists(f"dataset {before.name} was hashed in part", "hashed-in-part", hint=hint)
        return before.hashed
    if hash == "full" or schema.logical_bytes <= min(WHOLE_BYTES, part_s * READ_BYTES_PER_S):
        return HashedRows.all_of(schema.samples)
    return HashedRows.part_of(schema, PART_BYTES)


def hash_rows(
    data: UntrustedData, schema: Schema, hashed: HashedRows, part_s: float, writer: HashWriter, report: Report
) -> tuple[Checksum, HashedRows]:
    """Read rows in the sandbox; return their checksum and which they are: a part ends after `part_s`."""
    check, end = Checksum(schema), time.monotonic() + (math.inf if hashed.whole else part_s)
    # of a part, one piece is read at a time
    for pieces, (rows, hashes) in enumerate(sandbox.hashes(data, schema, hashed, report), 1):
        check.add_hashes(hashes, rows)
        writer.append(hashes)
        if time.monotonic() > end:
            return check, replace(hashed, pieces=pieces)
    return check, hashed


def hashed_in_part(manifest: Manifest) -> Finding:
    """Return the line that says how much of a dataset was hashed."""
    schema, count = manifest.schema, manifest.hashed.count
    some, every = (bytes_text(rows * schema.sample_bytes) for rows in (count, schema.samples))
    return Finding(
        "hashed-in-part",
        f"{some} of {every} were hashed, spread over the data; the rest is not verified",
        hint=f"'iobench verify --name {manifest.name} --hash full' hashes it",
        values={"hashed": count, "samples": schema.samples},
    )


def hash_rest(manifest: Manifest, progress: Progress) -> None:
    """Read all rows of a dataset that was hashed in part, compare those that were, and keep all hashes.

    The caller holds the dataset's lock. Raises CorruptArtifact if the data changed, WrongContent if hashed
    rows have other content, or two artifacts do not hold the same data.
    """
    every, sums = HashedRows.all_of(manifest.schema.samples), dict[str, tuple[int, int]]()
    with ExitStack() as stack:
        writers = {v: stack.enter_context(HashWriter.temporary(manifest.root)) for v in manifest.artifacts}
        for variant, writer in writers.items():
            known, whole = Checksum(manifest.schema), Checksum(manifest.schema)
            report = partial(progress, f"hashing {variant}")
            for rows, hashes in stored_hashes(manifest.opener(variant), every, report):
                whole.add_hashes(hashes, rows)
                some = manifest.hashed.known(rows)
                known.add_hashes(hashes[some], rows[some])
                writer.append(hashes)
            manifest.location_of(variant).check()
            _certify(known, manifest, variant)
            sums[variant] = whole.sums
        first = next(iter(sums))
        for variant, found in sums.items():
            if found != sums[first]:
                problem = f"other content than {first} in rows that were not hashed before"
                hint = manifest.location_of(variant).hint
                raise WrongContent(problem, "other-content", manifest.path_of(variant), hint=hint)
        manifest.content, manifest.ordered = sums[first]
        manifest.part = None
        manifest.save()
        for variant, writer in writers.items():
            writer.keep(manifest, variant)


LENGTHS = "lengths"  # name of the index
LENGTH_ROWS = 1 << 12  # read together: of images, the header of each


def sample_lengths(opener: Opener) -> Index:
    """Return the length of each sample, int64: that of its longest ragged field.

    The first time, a format that does not say where samples lie is read as a whole; where several axes vary,
    only the fields of extents.
    """
    whole = replace(opener, schema=opener.stored_schema, stored=None)

    def build() -> Iterator[dict[str, Index]]:
        with whole.guarded() as check, whole() as reader:
            check()
            if (placed := placed_lengths(reader)) is not None:
                yield {LENGTHS: placed}
                return
            if len(whole.schema.extents) == len(whole.schema.ragged):
                yield from _by_extents(reader)
                check()
                return
        for batch in read_back(whole):
            ragged: list[Any] = [batch[field.name] for field in whole.schema.ragged]
            yield {LENGTHS: np.maximum.reduce([np.diff(one.offsets) for one in ragged])}

    return np.asarray(whole.index_cache(LENGTHS, build, LENGTHS)[LENGTHS][: opener.schema.samples])


def _by_extents(reader: Reader) -> Iterator[dict[str, Index]]:
    """Yield the lengths by the extents of the samples, without their elements."""
    schema = reader.schema
    own = schema.chosen(schema.extents.values())
    for low in range(0, schema.samples, LENGTH_ROWS):
        rows = slice(low, min(low + LENGTH_ROWS, schema.samples))
        extents = own.empty(rows.stop - low)
        reader.read(rows, extents)
        yield {LENGTHS: np.maximum.reduce([one.prod(1, dtype=np.int64) for one in extents.values()])}


def placed_lengths(reader: Reader) -> Index | None:
    """Return the lengths by the places of the samples; None if not all fields have such."""
    schema, places, lengths = reader.schema, reader.placement(), []
    for field in schema.ragged:
        place = places.get(field.name)
        if not isinstance(place, Spans):
            return None
        begins, ends = place.edges(schema.samples, np.zeros(len(place.files), np.int64))
        lengths.append((ends - begins) // field.sample_bytes)
    return np.asarray(np.maximum.reduce(lengths))
