"""Named arrays that others wrote: which of them are taken, and whether every format can store them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from iobench.base.errors import (
    CorruptArtifact,
)
from iobench.base.text import listed, shortened
from iobench.formats._schema import DTYPES, Array, Field, Schema, field_name

MAX_FIELDS = 512  # several formats keep one file per field open, and 1024 open files are a usual limit
MAX_AXES = 32  # samples included: what HDF5 has
MAX_SAMPLE_BYTES = 128 << 20  # writing and reading back hold about six batches, and a batch has a sample
MAX_NAME = 200  # characters; several formats make a file name of it, which may have 255 bytes

ShapeAndDtype = tuple[tuple[int, ...], np.dtype[Any]]
NO_NUMBER = (
    f"not a number that every format stores ({', '.join(DTYPES)}); "
    "ragged and object arrays must be made rectangular first"
)


def split_selection(path: Path) -> tuple[Path, tuple[str, ...]]:
    """The file or folder, and the names of arrays in it that follow it after `::`, if any."""
    file, separator, names = os.fspath(path).rpartition("::")
    if not separator or os.path.lexists(path):
        return path, ()
    return Path(file), tuple(name.strip("/") for name in names.split(","))


def select_arrays(path: Path, available: Collection[str], chosen: Collection[str]) -> list[str]:
    """The names that were chosen, by themselves or by the group they are in; without a choice, all.

    CorruptArtifact where a choice is not there, where nothing is, or where it is more than can become
    fields.
    """
    for name in chosen:
        if not any(_within(other, name) for other in available):
            raise CorruptArtifact(f"{path}: it has no {name!r}; it has {listed(available) or 'nothing'}")
    taken = [name for name in available if not chosen or any(_within(name, one) for one in chosen)]
    if not taken:
        raise CorruptArtifact(f"{path}: it holds no array")
    if len(taken) > MAX_FIELDS:
        raise CorruptArtifact(
            f"{path}: {len(taken):,} arrays, and at most {MAX_FIELDS} become fields; stack what "
            f"is one sample each into one array{selection_hint(path, available)}"
        )
    return taken


def selection_hint(path: Path, available: Collection[str]) -> str:
    """The end of a complaint about data with several arrays: what they hold and how to take some of them."""
    if len(available) < 2:
        return ""
    return f"; to take some of its arrays, give '{path.name}::NAME,NAME', out of {listed(available)}"


def arrays_schema(path: Path, arrays: Mapping[str, ShapeAndDtype], available: Collection[str] = ()) -> Schema:
    """The schema of named arrays given as (shape, dtype); `available`: what else there was to choose.

    CorruptArtifact where one is empty, scalar, too large, or of a dtype that no format stores, or their
    leading axes differ.
    """
    try:
        return _arrays_schema(path, arrays)
    except CorruptArtifact as error:
        raise CorruptArtifact(f"{error}{selection_hint(path, available)}") from None


def native_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The same kind and size of number in this machine's byte order."""
    native: np.dtype[Any] = dtype.newbyteorder("=")
    return native


def native(array: Array) -> Array:
    """The same numbers in this machine's byte order: the array itself where they are."""
    return array.astype(native_dtype(array.dtype), copy=False)


def check_sample(what: str, shape: tuple[int, ...], sample_bytes: int) -> None:
    """CorruptArtifact where one sample has more axes or bytes than can be read and written."""
    if len(shape) >= MAX_AXES:
        raise CorruptArtifact(
            f"{what} has {len(shape) + 1} axes with that of samples; at most {MAX_AXES} are stored"
        )
    if sample_bytes > MAX_SAMPLE_BYTES:
        raise CorruptArtifact(
            f"{what}: one sample is {sample_bytes / 2**20:,.0f} MiB; at most {MAX_SAMPLE_BYTES >> 20} MiB "
            "can be prepared; the first axis must be that of samples, or they must be cut into smaller ones"
        )


def _arrays_schema(path: Path, arrays: Mapping[str, ShapeAndDtype]) -> Schema:
    fields: dict[str, Field] = {}
    for original, (shape, dtype) in arrays.items():
        name = field_name(original)
        if len(name) > MAX_NAME:
            raise CorruptArtifact(
                f"{path}: the name {shortened(name)!r} has {len(name)} characters; at most {MAX_NAME} "
                "can be stored"
            )
        if name in fields:
            raise CorruptArtifact(f"{path}: two arrays would both be the field {name!r}")
        fields[name] = _field(f"{path}: {shortened(original)}", name, shape, dtype)
    lengths = {original: shape[0] for original, (shape, _) in arrays.items()}
    if len(set(lengths.values())) > 1:
        shown = listed([f"{shortened(key, 30)} has {count}" for key, count in lengths.items()])
        raise CorruptArtifact(f"{path}: fields differ in length: {shown}")
    schema = Schema(next(iter(lengths.values())), tuple(fields.values()))
    check_sample(f"{path}", (), schema.sample_bytes)
    return schema


def _field(what: str, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Field:
    if native_dtype(dtype).name not in DTYPES:
        raise CorruptArtifact(f"{what} is {shortened(str(dtype))}, {NO_NUMBER}")
    if not shape:
        raise CorruptArtifact(f"{what} is a single value, without an axis of samples")
    if 0 in shape:
        raise CorruptArtifact(f"{what} is empty, its shape is {shortened(str(shape))}")
    check_sample(what, shape[1:], 0)
    return Field(name, tuple(shape[1:]), native_dtype(dtype).name)


def _within(name: str, chosen: str) -> bool:
    return name == chosen or name.startswith(f"{chosen}/")
