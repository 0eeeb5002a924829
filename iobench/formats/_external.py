"""Data that others wrote: their arrays as fields, under names that fields can have."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from iobench.base.errors import (
    CorruptArtifact,
)
from iobench.formats._arrays import check_sample
from iobench.formats._schema import DTYPES, Field, Schema, field_name

# what was never written is filled up as it is read, without end: more than a codec packs is no data
MOST_FILLED_BYTES, MOST_PACKED = 1 << 30, 10_000
FIXED = "pad the samples to one shape, or crop them to a fixed one, first"


def schema_of_arrays(
    path: Path, arrays: Mapping[str, tuple[tuple[int, ...], str]], fields: Sequence[Field] = ()
) -> Schema:
    """The schema of arrays by their own names, each of them (shape with the axis of samples, dtype).

    `fields`: take these fields alone. CorruptArtifact where there is none, one is a single value or empty,
    its dtype is none that is held, a sample is too large, or lengths differ.
    """
    names = fields_by_name(path, arrays)
    wanted = {field.name for field in fields} or set(names)
    if missing := sorted(wanted - set(names)):
        raise CorruptArtifact(f"{path}: it has no {', '.join(missing)}; it has {', '.join(names)}")
    taken = [_field(path, name, *arrays[names[name]]) for name in names if name in wanted]
    lengths = {name: arrays[names[name]][0][0] for name in wanted}
    if not taken:
        raise CorruptArtifact(f"{path}: it holds no array")
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} has {count}" for name, count in sorted(lengths.items()))
        raise CorruptArtifact(f"{path}: arrays differ in length: {shown}")
    schema = Schema(next(iter(lengths.values())), tuple(taken))
    for field in taken:
        check_sample(f"{path}: {field.name}", field.shape, field.sample_bytes)
    check_sample(f"{path}", (), schema.sample_bytes)
    return schema


def check_stored(path: Path, schema: Schema, stored_bytes: int) -> Schema:
    """The schema itself; CorruptArtifact where so few bytes are stored that next to all would be made up."""
    if schema.logical_bytes > MOST_FILLED_BYTES + MOST_PACKED * stored_bytes:
        raise CorruptArtifact(
            f"{path}: said to have {schema.logical_bytes:,} bytes, and {stored_bytes:,} are stored; "
            "the rest was never written"
        )
    return schema


def fields_by_name(path: Path, names: Iterable[str]) -> dict[str, str]:
    """The own name of each field's array; CorruptArtifact where two would be one field."""
    found: dict[str, str] = {}
    for name in names:
        field = field_name(name)
        if field in found:
            raise CorruptArtifact(f"{path}: {found[field]} and {name} would both be the field {field}")
        found[field] = name
    return found


def as_options(fields: Iterable[Field]) -> str:
    """What to type to have these fields taken."""
    return " ".join(f"--field {shlex.quote(field.typed)}" for field in fields)


def not_fixed(path: Path, name: str, found: str) -> CorruptArtifact:
    """The CorruptArtifact for samples that are not all of one shape."""
    return CorruptArtifact(f"{path}: {name} is {found}, and samples must be of one shape: {FIXED}")


def _field(path: Path, name: str, shape: tuple[int, ...], dtype: str) -> Field:
    if not shape or 0 in shape:
        found = "a single value, without an axis of samples" if not shape else f"empty, of shape {shape}"
        raise CorruptArtifact(f"{path}: {name} is {found}")
    if dtype not in DTYPES:
        raise CorruptArtifact(f"{path}: {name} is {dtype}, which is not one of {', '.join(DTYPES)}")
    return Field(name, shape[1:], dtype)
