"""Schema of named arrays from outside: which arrays are selected, and whether every format can hold them."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from iobench.base.errors import CorruptArtifact
from iobench.base.text import LISTED, listed, shortened, suggestion
from iobench.formats.folders import natural
from iobench.formats.ragged import Ragged
from iobench.formats.schema import DTYPES, Array, Batch, Field, Schema, field_names, renamed

UNLIKE = "unlike-groups"  # kind of the error that a group differs from the others
LIKE_GROUPS = 3  # from which on groups of a file are taken for parts
MAX_FIELDS = 512  # several formats keep one file per field open, and 1024 open files are a usual limit
MAX_AXES = 32  # sample axis included: HDF5's limit
MAX_SAMPLE_BYTES = 128 << 20  # writing and reading back hold about six batches of at least one sample

ShapeAndDtype = tuple[tuple[int, ...], "np.dtype[Any] | str"]
TOKENIZED = (
    "make numbers of text: of class names by pandas.factorize, of sentences lists of integers by a tokenizer"
)
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
            held = listed([repr(one) if "," in one else one for one in available])
            hint = f"{suggestion(name, available)}it holds {held or 'no arrays'}"
            raise CorruptArtifact(f"no array {name!r}", "unknown-array", path, hint=hint)
    taken = [name for name in available if not chosen or any(_within(name, one) for one in chosen)]
    if not taken:
        raise CorruptArtifact("it holds no arrays", "no-arrays", path)
    if len(taken) > MAX_FIELDS:
        problem, expected = "too many arrays", f"at most {MAX_FIELDS}"
        found = f"{len(taken):,}"
        hint = "stack arrays of one sample each into one array; or append ::NAME,NAME to take some of them"
        raise CorruptArtifact(problem, "too-many-arrays", path, expected=expected, found=found, hint=hint)
    return taken


@dataclass(frozen=True)
class Groups:
    """Groups of one file whose arrays are alike: the same names, dtypes, and shapes of a sample.

    `arrays` are shape and dtype of the arrays in each group by its path, in natural order, empty without
    several; `left` is what lies outside of them.
    """

    arrays: Mapping[str, Mapping[str, ShapeAndDtype]] = field(default_factory=dict)
    left: tuple[str, ...] = ()

    @classmethod
    def of(cls, arrays: Mapping[str, ShapeAndDtype], others: Collection[str] = ()) -> Groups:
        """Find the groups of `arrays`; an array outside with as many rows as all of them speaks against.

        Beside three that are alike, groups without any array of theirs lie outside.
        """
        below: dict[str, dict[str, dict[str, ShapeAndDtype]]] = {}
        for name, one in arrays.items():
            parts = name.split("/")
            for depth in range(len(parts) - 1):
                group = below.setdefault("/".join(parts[:depth]), {})
                group.setdefault("/".join(parts[: depth + 1]), {})["/".join(parts[depth + 1 :])] = one
        for every in below.values():
            kinds = {
                group: tuple(
                    sorted((name, len(one[0]), one[0][1:], str(one[1])) for name, one in own.items())
                )
                for group, own in every.items()
            }
            (usual, count), *_ = Counter(kinds.values()).most_common()
            groups = {group: own for group, own in every.items() if kinds[group] == usual}
            names = {name for name, *_ in usual}
            unlike = [own for group, own in every.items() if group not in groups]
            if unlike and (count < LIKE_GROUPS or any(names & own.keys() for own in unlike)):
                continue
            inside = {f"{group}/{name}" for group, own in groups.items() for name in own}
            rows = sum(
                max((shape[0] for shape, _ in own.values() if shape), default=0) for own in groups.values()
            )
            outside = {name: shape for name, (shape, _) in arrays.items() if name not in inside}
            if len(groups) > 1 and all(shape[:1] != (rows,) for shape in outside.values()):
                within = tuple(f"{group}/" for group in groups)
                left = [*outside, *(name for name in others if not name.startswith(within))]
                return cls({name: groups[name] for name in sorted(groups, key=natural)}, tuple(left))
        return cls()


def _suggesting_selection(
    error: CorruptArtifact, path: Path, arrays: Mapping[str, ShapeAndDtype], tried: Collection[str]
) -> CorruptArtifact:
    """Return an error whose hint also selects arrays that can be read: the most that have one length.

    `arrays` are those that may be readable, and `tried` those that are not all so together.
    """
    if error.kind == UNLIKE:  # a part of the groups is no dataset
        return error
    groups: dict[int, list[str]] = {}
    for name, (shape, dtype) in arrays.items():
        with suppress(CorruptArtifact):
            _field(path, name, "x", shape, dtype)
            groups.setdefault(shape[0], []).append(name)
    best = max(groups.values(), key=len, default=[])
    if not best or set(best) == set(tried):
        return error
    return error.changed(hint="; ".join(filter(None, (error.hint, _selecting(best)))))


def _selecting(names: Sequence[str]) -> str:
    """Return the hint to take some arrays; a name with a comma cannot be selected."""
    shown = [name for name in names if "," not in name][:LISTED]
    return (
        f"append {shlex.quote('::' + ','.join(shown))} to its path to read {listed(shown)}" if shown else ""
    )


def unstorable_columns(
    path: Path, refused: Mapping[str, object], others: Collection[str], what: str = "column"
) -> CorruptArtifact:
    """Return the error for columns of a table, or others, that hold no numbers, given with their types.

    Its hint is the selection of the other columns, if there are any.
    """
    text = any("string" in str(kind) for kind in refused.values())
    ways = [TOKENIZED if text else "" if others else DTYPE_HINT, _selecting(list(others))]
    problem = f"{what} {listed(list(refused))}: unsupported dtype"
    found, hint = listed(sorted({str(kind) for kind in refused.values()})), "; or ".join(filter(None, ways))
    return CorruptArtifact(problem, "unsupported-dtype", path, expected="numbers", found=found, hint=hint)


def without_samples(shapes: Mapping[str, tuple[int, ...]], refused: Collection[str] = ()) -> set[str]:
    """Return the arrays without samples beside others: scalars, empty ones, `refused` of another length."""
    arrays = {
        name: shape for name, shape in shapes.items() if shape and 0 not in shape and name not in refused
    }
    arrays = arrays or {name: shape for name, shape in shapes.items() if shape and name not in refused}
    lengths = {shape[0] for shape in arrays.values()}
    others = {name: shape for name, shape in shapes.items() if arrays and name not in arrays}
    return {name for name, shape in others.items() if not shape or 0 in shape or shape[0] not in lengths}


def selected_schema(
    path: Path,
    arrays: Mapping[str, ShapeAndDtype | CorruptArtifact],
    names: Collection[str],
    fields: Sequence[Field] = (),
    totals: Mapping[str, int] | None = None,
) -> Schema:
    """Return the schema of the arrays `names` out of all that a file holds; see `arrays_schema`.

    An array that cannot be read is given as the error, without name and path, which is raised if it is
    selected. Errors suggest to select others.
    """
    readable = {name: one for name, one in arrays.items() if not isinstance(one, CorruptArtifact)}
    try:
        for name in names:
            if isinstance(refusal := arrays[name], CorruptArtifact):
                raise refusal.changed(problem=f"{shortened(name)}: {refusal.problem}", path=path)
        return _arrays_schema(path, {name: readable[name] for name in names}, arrays, fields, totals or {})
    except CorruptArtifact as error:
        raise _suggesting_selection(error, path, readable, names) from None


def arrays_schema(
    path: Path,
    arrays: Mapping[str, ShapeAndDtype],
    available: Collection[str] = (),
    fields: Sequence[Field] = (),
    totals: Mapping[str, int] | None = None,
) -> Schema:
    """Return the schema of named arrays, given as (shape, dtype); the first axis is the sample axis.

    An array whose samples differ in length has VARIES as its second axis, and the sum of the lengths in
    `totals`. `available` names all that the file holds, so that names differ, if some can be selected.
    `fields` are those to take, by name; all if empty. Errors name `path`, the file or folder of the arrays.

    CorruptArtifact of kind ``empty-array``, ``no-sample-axis``, ``too-many-axes``, ``sample-too-large``,
    ``unsupported-dtype``, ``name-clash``, ``unknown-array``, ``no-arrays`` or ``unequal-lengths``.
    """
    try:
        return _arrays_schema(path, arrays, available, fields, totals or {})
    except CorruptArtifact as error:
        if not available:
            raise
        raise _suggesting_selection(error, path, arrays, arrays) from None


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
        problem, expected = f"{prefix}too many axes", f"at most {MAX_AXES}, the sample axis included"
        raise CorruptArtifact(problem, "too-many-axes", path, expected=expected, found=len(shape) + 1)
    if sample_bytes > MAX_SAMPLE_BYTES:
        problem, expected = f"{prefix}one sample is too large", f"at most {MAX_SAMPLE_BYTES >> 20} MiB"
        found = f"{sample_bytes >> 20:,} MiB"
        hint = "make the sample axis the first, or cut samples into smaller ones"
        raise CorruptArtifact(problem, "sample-too-large", path, expected=expected, found=found, hint=hint)


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
        raise CorruptArtifact(f"two arrays are named {twice[0]!r}", "name-clash", path)
    return field_names(every)


def _arrays_schema(
    path: Path,
    arrays: Mapping[str, ShapeAndDtype],
    available: Collection[str],
    chosen: Sequence[Field],
    totals: Mapping[str, int],
) -> Schema:
    every = field_names([*available, *arrays])
    names = {name: own for name, own in every.items() if own in arrays}
    requested = {one.name for one in chosen} or set(names)
    if missing := sorted(requested - set(names)):
        held = f"{suggestion(missing[0], names)}it holds {', '.join(names)}"
        raise CorruptArtifact(f"no field {', '.join(missing)}", "unknown-array", path, hint=held)
    if not names:
        raise CorruptArtifact("it holds no arrays", "no-arrays", path)
    taken = {own: _field(path, own, name, *arrays[own]) for name, own in names.items() if name in requested}
    lengths = {own: arrays[own][0][0] for own in taken}
    if len(set(lengths.values())) > 1:
        if (odd := _odd_group({name: arrays[name] for name in taken})) is not None:
            raise CorruptArtifact(
                odd, UNLIKE, path, hint="write it like the others, or select arrays with '::'"
            )
        shown = listed([f"{shortened(name, 30)} has {count}" for name, count in lengths.items()])
        turned = (
            f"if samples lie along axis {shape.index(rows)} of {own}, as in {other}, "
            f"save numpy.moveaxis(x, {shape.index(rows)}, 0) of it"
            for own, (shape, _) in arrays.items()
            for other, rows in lengths.items()
            if own in lengths and rows in shape[1:] and rows > shape[0]
        )
        hint = next(turned, None)
        raise CorruptArtifact("the arrays differ in length", "unequal-lengths", path, found=shown, hint=hint)
    fields = tuple(taken.values())
    ragged = {one.name: totals[names[one.name]] for one in fields if one.is_ragged}
    schema = Schema(next(iter(lengths.values())), fields, renamed(fields, names), ragged)
    check_sample("", (), schema.sample_bytes, path)
    return schema


def _odd_group(arrays: Mapping[str, ShapeAndDtype]) -> str | None:
    """Return how a group differs from the others, most of which are alike; None if none does."""
    groups: dict[str, dict[str, tuple[object, ...]]] = {}
    for name, (shape, dtype) in arrays.items():
        group, _, within = name.rpartition("/")
        groups.setdefault(group, {})[within] = (len(shape), shape[1:], str(dtype))
    kinds = Counter(tuple(sorted(own.items())) for own in groups.values())
    (usual, count), *others = kinds.most_common()
    if "" in groups or len(groups) < LIKE_GROUPS or count <= len(groups) / 2 or not others:
        return None
    odd, held = next((group, own) for group, own in groups.items() if tuple(sorted(own.items())) != usual)
    for within, kind in usual:
        if within not in held:
            return f"group {odd} has no array {within}, which the others have"
        if held[within] != kind:
            return f"{odd}/{within} has another dtype, or shape of a sample, than the others"
    return f"group {odd} has arrays that the others lack"


def unsupported_dtype(path: Path, what: str, found: object) -> CorruptArtifact:
    """Return the error for data whose dtype formats do not store."""
    problem = f"{what}: unsupported dtype".removeprefix(": ")
    return CorruptArtifact(problem, "unsupported-dtype", path, found=shortened(str(found)), hint=DTYPE_HINT)


def _field(path: Path, original: str, name: str, shape: tuple[int, ...], dtype: np.dtype[Any] | str) -> Field:
    what, typed = shortened(original), dtype if isinstance(dtype, str) else native_dtype(dtype).name
    if typed not in DTYPES:
        raise unsupported_dtype(path, what, dtype)
    if not shape:
        raise CorruptArtifact(f"{what} is a scalar, without a sample axis", "no-sample-axis", path)
    if 0 in shape:
        raise CorruptArtifact(f"{what} is empty", "empty-array", path, found=f"shape {shortened(str(shape))}")
    check_sample(what, shape[1:], 0, path)
    return Field(name, tuple(shape[1:]), typed)


def _within(name: str, chosen: str) -> bool:
    return name == chosen or name.startswith(f"{chosen}/")
