"""Data that other programs wrote: checks of what they declare."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from iobench.base.errors import CorruptArtifact
from iobench.formats import Field, Index, Schema

# Data that were never written read as fill values, without end. More than 1 GiB beyond what a codec can
# compress 10,000 : 1 cannot be data.
MOST_FILLED_BYTES, MOST_PACKED = 1 << 30, 10_000
FIXED = "pad the samples to one shape, or crop them to one"


def check_stored(path: Path, schema: Schema, stored_bytes: int) -> Schema:
    """Return the schema; CorruptArtifact (``not-stored``) if almost all of the data were never written."""
    if schema.logical_bytes > MOST_FILLED_BYTES + MOST_PACKED * stored_bytes:
        problem, expected = "most of the data were never written", f"{schema.logical_bytes:,} bytes of arrays"
        found = f"{stored_bytes:,} stored bytes"
        raise CorruptArtifact(problem, "not-stored", path, expected=expected, found=found)
    return schema


def as_options(fields: Iterable[Field]) -> str:
    """Return the command-line options that select these fields."""
    return " ".join(f"--field {shlex.quote(field.typed)}" for field in fields)


def unequal_samples(
    path: Path, problem: str, expected: object, found: object, hint: str = FIXED
) -> CorruptArtifact:
    """Return the error for samples that differ in shape, size or dtype."""
    return CorruptArtifact(
        problem, kind="unequal-shapes", path=path, expected=expected, found=found, hint=hint
    )


def not_fixed(path: Path, name: str, found: str) -> CorruptArtifact:
    """Return the error for a field whose samples differ in shape or dtype."""
    return unequal_samples(path, f"{name}: the samples differ", "samples of one shape and dtype", found)


def check_lengths(
    field: Field, lengths: Index, each: int, unit: str, path_of: Callable[[int], Path], first: int
) -> None:
    """Raise CorruptArtifact (``unequal-shapes``) unless each sample of a field has `each` units.

    Those of a ragged field have any multiple of them. `first` is the number of samples before these, and
    `path_of` returns the file of one of these.
    """
    differ = lengths % each != 0 if field.is_ragged else lengths != each
    if (wrong := np.flatnonzero(differ)).size:
        row = int(wrong[0])
        raise unequal_samples(
            path_of(row),
            f"{field.name} of sample {first + row} has another length",
            f"{'a multiple of ' * field.is_ragged}{each} {unit} for {field.typed}",
            f"{lengths[row]} {unit}",
        )
