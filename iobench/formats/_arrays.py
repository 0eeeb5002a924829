"""Schema of named arrays from outside: which arrays are selected, and whether every format can hold them."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from iobench.base.errors import CorruptArtifact, IobenchError
from iobench.base.text import listed, shortened, suggestion
from iobench.formats._ragged import Ragged
from iobench.formats._schema import DTYPES, Array, Batch, Field, Schema, field_names, renamed

_Error = TypeVar("_Error", bound=IobenchError)
MAX_FIELDS = 512  # several formats keep one file per field open, and 1024 open files are a usual limit
MAX_AXES = 32  # sample axis included: HDF5's limit
MAX_SAMPLE_BYTES = 128 << 20  # writing and reading back hold about six batches of at least one sample

ShapeAndDtype = tuple[tuple[int, ...], "np.dtype[Any] | str"]
DTYPE_HINT = f"formats store {', '.join(DTYPES)}; make ragged and object arrays rectangular, of such a dtype"


def split_selection(path: Path) -> tuple[Path, tuple[str, ...]]:
    """Split ``PATH::NAME,NAME`` into the file or folder and the names of the selected arrays, if any."""
    file, separator, names = os.fspath(path).rpartition("::")
    if not separator or os.path.lexists(path):
        return path, ()
    return Path(file), tuple(name.strip("/") for name in names.split(","))


def with_selection(path: Path, names: Sequence[str]) -> Path:
    """Return ``PATH::NAME,NAME`` for a file or folder and the names of selected arrays, if any."""
    return Path(f"{path}::{','.join(names)}") if names else path


def select_arrays(path: Path, available: Collection[str], chosen: Collection[str]) -> list[str]:
    """Return the selected names out of `available`, in its order; all of them if `chosen` is empty.

    `chosen` holds names of arrays, or of groups whose arrays are all selected.

    CorruptArtifact of kind ``unknown-array``, ``no-arrays`` or ``too-many-arrays``.
    """
    for name in chosen:
        if not any(_within(other, name) for other in available):
            raise CorruptArtifact(
                f"no array {name!r}",
                kind="unknown-array",
                path=path,
                hint=f"{suggestion(name, available)}it holds {listed(available) or 'no arrays'}",
            )
    taken = [name for name in available if not chosen or any(_within(name, one) for one in chosen)]
    if not taken:
        raise CorruptArtifact("it holds no arrays", kind="no-arrays", path=path)
    if len(taken) > MAX_FIELDS:
        error = CorruptArtifact(
            "too many arrays",
            kind="too-many-arrays",
            path=path,
            expected=f"at most {MAX_FIELDS}",
            found=f"{len(taken):,}",
            hint="stack arrays of one sample each into one array",
        )
        raise suggesting_selection(error, path, available)
    return taken


def suggesting_selection(error: _Error, path: Path, available: Collection[str]) -> _Error:
    """Return an error whose hint also says how to select some of several arrays."""
    if len(available) < 2:
        return error
    select = f"to take some of its arrays, give '{path.name}::NAME,NAME', out of {listed(available)}"
    return error.changed(hint=f"{error.hint}; {select}" if error.hint else select)


def unstorable_columns(path: Path, refused: Mapping[str, object], others: Collection[str]) -> CorruptArtifact:
    """Return the error for columns of a table that hold no numbers, given with their types.

    Its hint is the selection of the other columns, if there are any.
    """
    few = (
        f"take the other columns: {shlex.quote(str(with_selection(path, list(others))))}" if others else None
    )
    return CorruptArtifact(
        f"column {listed(list(refused))}: unsupported dtype",
        kind="unsupported-dtype",
        path=path,
        expected="numbers",
        found=listed(sorted({str(kind) for kind in refused.values()})),
        hint=few or DTYPE_HINT,
    )


def arrays_schema(
    path: Path,
    arrays: Mapping[str, ShapeAndDtype],
    available: Collection[str] = (),
    fields: Sequence[Field] = (),
    totals: Mapping[str, int] | None = None,
) -> Schema:
    """Return the schema of named arrays, given as (shape, dtype); the first axis is the sample axis.

    An array whose samples differ in length has VARIES as its second axis, and the sum of the lengths in
    `totals`. `available` names what could have been selected, for hints and for names that differ. `fields`
    are those to take, by name; all if empty. Errors name `path`, the file or folder of the arrays.

    CorruptArtifact of kind ``empty-array``, ``no-sample-axis``, ``too-many-axes``, ``sample-too-large``,
    ``unsupported-dtype``, ``name-clash``, ``unknown-array``, ``no-arrays`` or ``unequal-lengths``.
    """
    try:
        return _arrays_schema(path, arrays, available, fields, totals or {})
    except CorruptArtifact as error:
        raise suggesting_selection(error, path, available) from None


def native_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in this machine's byte order."""
    native: np.dtype[Any] = dtype.newbyteorder("=")
    return native


def native(array: Array) -> Array:
    """Return the array in this machine's byte order; the array itself if it already is."""
    return array.astype(native_dtype(array.dtype), copy=False)


def check_sample(what: str, shape: tuple[int, ...], sample_bytes: int, path: Path | None = None) -> None:
    """Raise CorruptArtifact if one sample has more axes or bytes than can be read and written.

    `what` names the array or option; empty for a sample with all its fields. The kind is
    ``too-many-axes`` or ``sample-too-large``.
    """
    prefix = f"{what}: " if what else ""
    if len(shape) >= MAX_AXES:
        raise CorruptArtifact(
            f"{prefix}too many axes",
            kind="too-many-axes",
            path=path,
            expected=f"at most {MAX_AXES}, the sample axis included",
            found=len(shape) + 1,
        )
    if sample_bytes > MAX_SAMPLE_BYTES:
        raise CorruptArtifact(
            f"{prefix}one sample is too large",
            kind="sample-too-large",
            path=path,
            expected=f"at most {MAX_SAMPLE_BYTES >> 20} MiB",
            found=f"{sample_bytes / 2**20:,.0f} MiB",
            hint="make the sample axis the first, or cut samples into smaller ones",
        )


def with_own_extents(field: Field, samples: Sequence[Array]) -> Batch:
    """Return samples of different shapes as the fields of a batch: end to end, and their extents."""
    assert field.extents is not None
    rows = [sample.reshape(-1, *field.inner) for sample in samples]
    extents = np.array([sample.shape[: field.varying] for sample in samples], field.extents.dtype)
    batch: dict[str, Any] = {field.name: Ragged.of(rows, field.inner, field.dtype)}
    return {**batch, field.extents.name: extents.reshape(-1, field.varying)}


def fields_by_name(path: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the array's own name for each field name; CorruptArtifact (``name-clash``) if two agree."""
    every = list(names)
    if twice := [name for name, count in Counter(every).items() if count > 1]:
        raise CorruptArtifact(f"two arrays are named {twice[0]!r}", kind="name-clash", path=path)
    return field_names(every)


def _arrays_schema(
    path: Path,
    arrays: Mapping[str, ShapeAndDtype],
    available: Collection[str],
    chosen: Sequence[Field],
    totals: Mapping[str, int],
) -> Schema:
    every = field_names([*available, *arrays])
    names = {field: own for field, own in every.items() if own in arrays}
    requested = {field.name for field in chosen} or set(names)
    if missing := sorted(requested - set(names)):
        held = f"{suggestion(missing[0], names)}it holds {', '.join(names)}"
        raise CorruptArtifact(f"no field {', '.join(missing)}", kind="unknown-array", path=path, hint=held)
    if not names:
        raise CorruptArtifact("it holds no arrays", kind="no-arrays", path=path)
    taken = {own: _field(path, own, name, *arrays[own]) for name, own in names.items() if name in requested}
    lengths = {own: arrays[own][0][0] for own in taken}
    if len(set(lengths.values())) > 1:
        shown = listed([f"{shortened(name, 30)} has {count}" for name, count in lengths.items()])
        raise CorruptArtifact("the arrays differ in length", kind="unequal-lengths", path=path, found=shown)
    fields = tuple(taken.values())
    ragged = {field.name: totals[names[field.name]] for field in fields if field.is_ragged}
    schema = Schema(next(iter(lengths.values())), fields, renamed(fields, names), ragged)
    check_sample("", (), schema.sample_bytes, path)
    return schema


def unsupported_dtype(path: Path, what: str, found: object) -> CorruptArtifact:
    """Return the error for data whose dtype formats do not store."""
    return CorruptArtifact(
        f"{what}: unsupported dtype",
        kind="unsupported-dtype",
        path=path,
        found=shortened(str(found)),
        hint=DTYPE_HINT,
    )


def _field(path: Path, original: str, name: str, shape: tuple[int, ...], dtype: np.dtype[Any] | str) -> Field:
    what, typed = shortened(original), dtype if isinstance(dtype, str) else native_dtype(dtype).name
    if typed not in DTYPES:
        raise unsupported_dtype(path, what, dtype)
    _check_sample_axis(path, what, shape)
    check_sample(what, shape[1:], 0, path)
    return Field(name, tuple(shape[1:]), typed)


def _check_sample_axis(path: Path, what: str, shape: tuple[int, ...]) -> None:
    """Raise CorruptArtifact if an array has no axis of samples, or no element."""
    if not shape:
        raise CorruptArtifact(f"{what} is a scalar, without a sample axis", kind="no-sample-axis", path=path)
    if 0 in shape:
        raise CorruptArtifact(
            f"{what} is empty", kind="empty-array", path=path, found=f"shape {shortened(str(shape))}"
        )


def _within(name: str, chosen: str) -> bool:
    return name == chosen or name.startswith(f"{chosen}/")
