"""Hashing of added data: all rows, a part of them that is spread over the data, and later the rest."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from iobench.base.errors import ArtifactExists, WrongContent
from iobench.base.finding import Finding
from iobench.base.units import bytes_text
from iobench.dataset import sandbox
from iobench.dataset.checksum import Checksum
from iobench.dataset.hashed_rows import HashedRows
from iobench.dataset.manifest import READ_BYTES_PER_S, Manifest
from iobench.dataset.read_back import Report, compare, stored_hashes
from iobench.dataset.sample_hashes import HashWriter
from iobench.dataset.untrusted_data import UntrustedData
from iobench.dataset.verify import Progress
from iobench.formats import Schema

WHOLE_BYTES = 20 << 30  # up to this size all rows are hashed
PART_BYTES = 10 << 30  # of larger data, or as much as is read in
PART_S = 110.0  # so that `add` takes about two minutes


def rows_to_hash(before: Manifest | None, schema: Schema, hash: str, part_s: float) -> HashedRows:
    """Return the rows to hash for `--hash`: those of the dataset that the data extend, if there is one.

    Of data that would take more than `part_s` at READ_BYTES_PER_S, a part.
    """
    if before is not None:
        if hash == "full" and before.part is not None:
            raise ArtifactExists(
                f"dataset {before.name} was hashed in part",
                kind="hashed-in-part",
                hint=f"run 'iobench verify --name {before.name} --hash full' first",
            )
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
    with ExitStack() as stack:
        writers = {v: stack.enter_context(HashWriter.temporary(manifest.root)) for v in manifest.artifacts}
        sums = {
            variant: _hash_all(manifest, variant, writer, progress) for variant, writer in writers.items()
        }
        first = next(iter(sums))
        for variant, found in sums.items():
            if found != sums[first]:
                raise WrongContent(
                    f"other content than {first} in rows that were not hashed before",
                    kind="other-content",
                    path=manifest.path_of(variant),
                    hint=manifest.location_of(variant).hint,
                )
        manifest.content, manifest.ordered = sums[first]
        manifest.part = None
        manifest.save()
        for variant, writer in writers.items():
            writer.keep(manifest, variant)


def _hash_all(manifest: Manifest, variant: str, writer: HashWriter, progress: Progress) -> tuple[int, int]:
    """Hash an artifact's rows in stored order and return their sums."""
    known, whole = Checksum(manifest.schema), Checksum(manifest.schema)
    location = manifest.location_of(variant)
    every = HashedRows.all_of(manifest.schema.samples)
    report = partial(progress, f"hashing {variant}")
    for rows, hashes in stored_hashes(manifest.opener(variant), every, report):
        whole.add_hashes(hashes, rows)
        some = manifest.hashed.known(rows)
        known.add_hashes(hashes[some], rows[some])
        writer.append(hashes)
    location.check()
    compare(manifest.checksums_of(variant), location.path, known, location.hint)
    return whole.content, whole.ordered
