"""Data that other programs wrote: schema of their arrays, and checks of what they declare."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from iobench.base.errors import CorruptArtifact
from iobench.formats import (
    DTYPE_HINT,
    DTYPES,
    Field,
    Schema,
    check_sample,
    check_sample_axis,
    field_name,
    unequal_lengths,
)

# Data that were never written read as fill values, without end. More than 1 GiB beyond what a codec can
# compress 10,000 : 1 cannot be data.
MOST_FILLED_BYTES, MOST_PACKED = 1 << 30, 10_000
FIXED = "pad the samples to one shape, or crop them to one"


def schema_of_arrays(
    path: Path, arrays: Mapping[str, tuple[tuple[int, ...], str]], fields: Sequence[Field] = ()
) -> Schema:
    """Return the schema of arrays by their own names, each as (shape with the sample axis, dtype).

    `fields` selects fields by name; all if empty.

    Raises
    ------
    CorruptArtifact
        Kind ``unknown-array``, ``no-arrays``, ``no-sample-axis``, ``empty-array``, ``unsupported-dtype``,
        ``sample-too-large``, ``name-clash`` or ``unequal-lengths``.
    """
    names = fields_by_name(path, arrays)
    requested = {field.name for field in fields} or set(names)
    if missing := sorted(requested - set(names)):
        raise CorruptArtifact(
            f"no field {', '.join(missing)}",
            kind="unknown-array",
            path=path,
            hint=f"it holds {', '.join(names)}",
        )
    taken = [_field(path, name, *arrays[names[name]]) for name in names if name in requested]
    lengths = {name: arrays[names[name]][0][0] for name in sorted(requested)}
    if not taken:
        raise CorruptArtifact("it holds no arrays", kind="no-arrays", path=path)
    if len(set(lengths.values())) > 1:
        raise unequal_lengths(path, lengths)
    schema = Schema(next(iter(lengths.values())), tuple(taken))
    for field in taken:
        check_sample(field.name, field.shape, field.sample_bytes, path)
    check_sample("", (), schema.sample_bytes, path)
    return schema


def check_stored(path: Path, schema: Schema, stored_bytes: int) -> Schema:
    """Return the schema; CorruptArtifact (``not-stored``) if almost all of the data were never written."""
    if schema.logical_bytes > MOST_FILLED_BYTES + MOST_PACKED * stored_bytes:
        raise CorruptArtifact(
            "most of the data were never written",
            kind="not-stored",
            path=path,
            expected=f"{schema.logical_bytes:,} bytes of arrays",
            found=f"{stored_bytes:,} stored bytes",
        )
    return schema


def fields_by_name(path: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the array's own name for each field name; CorruptArtifact (``name-clash``) if two agree."""
    by_field: dict[str, str] = {}
    for name in names:
        field = field_name(name)
        if field in by_field:
            raise CorruptArtifact(
                f"{by_field[field]} and {name} have the field name {field}", kind="name-clash", path=path
            )
        by_field[field] = name
    return by_field


def as_options(fields: Iterable[Field]) -> str:
    """Return the command-line options that select these fields."""
    return " ".join(f"--field {shlex.quote(field.typed)}" for field in fields)


def not_fixed(path: Path, name: str, found: str) -> CorruptArtifact:
    """Return the error for samples that differ in shape or dtype."""
    return CorruptArtifact(
        f"{name}: the samples differ",
        kind="unequal-shapes",
        path=path,
        expected="samples of one shape and dtype",
        found=found,
        hint=FIXED,
    )


def _field(path: Path, name: str, shape: tuple[int, ...], dtype: str) -> Field:
    check_sample_axis(path, name, shape)
    if dtype not in DTYPES:
        raise CorruptArtifact(
            f"{name}: unsupported dtype", kind="unsupported-dtype", path=path, found=dtype, hint=DTYPE_HINT
        )
    return Field(name, shape[1:], dtype)
