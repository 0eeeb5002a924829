"""Conversion between fields and Arrow columns.

A field of shape (a, b) is a fixed-size list of `a` fixed-size lists of `b`, and one of shape (*, b) a large
list of them. Files of other programs may also hold `arrow.fixed_shape_tensor`, and lists of 32-bit offsets;
a column of lists that all have one length is a field of fixed shape, and one of lists of lists that differ in
length a field in which several axes vary, with that of its extents. A column of bytes is a ragged field.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.base.finding import Finding
from iobench.base.text import listed
from iobench.contrib.formats.shared.external import not_fixed, unequal_samples
from iobench.formats import (
    COMPLEX,
    NUMPY_DTYPES,
    VARIES,
    Array,
    Batch,
    Field,
    Index,
    Ragged,
    Schema,
    arrays_schema,
    check_offsets,
    fields_by_name,
    joined,
    offsets_of,
    own_extents,
    select_arrays,
    unstorable_columns,
    with_extents,
)
from iobench.formats.folders import parts_not_read

INDEX = re.compile(r"__index_level_\d+__")  # column in which pandas keeps an index without a name
STRUCT = {"bytes", "path"}  # columns of an embedded file
DECODING = "decode them after loading, such as in StreamLoader's transform"


def holds_bytes(kind: pa.DataType) -> bool:
    """Return whether a column holds bytes of any length, alone or with the path of a file."""
    if pa.types.is_struct(kind):
        return {field.name for field in kind} == STRUCT and _is_binary(kind.field("bytes").type)
    return _is_binary(kind)


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def list_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that a column of bytes is read as."""
    stored = kind.field("bytes").type if pa.types.is_struct(kind) else kind
    return (pa.large_list if pa.types.is_large_binary(stored) else pa.list_)(pa.uint8())


def as_lists(column: pa.Array) -> pa.Array:
    """Return a column of bytes as lists of uint8, which share its memory."""
    kind = list_type(column.type)
    stored = _part(column, "bytes")
    if not len(stored):
        return pa.array([], kind)
    validity, offsets, data = stored.buffers()
    values = pa.Array.from_buffers(pa.uint8(), data.size if data else 0, [None, data])
    return pa.Array.from_buffers(
        kind, len(stored), [validity, offsets], stored.null_count, stored.offset, [values]
    )


def _part(column: pa.Array, name: str) -> pa.Array:
    """Return the bytes or paths of a column, which are null where the struct is; bytes alone as they are."""
    if not pa.types.is_struct(column.type):
        return column
    return column.flatten()[column.type.get_field_index(name)]


def selected(batch: pa.RecordBatch, names: Iterable[str]) -> pa.RecordBatch:
    """Return these columns of a record batch, those of bytes as lists, without paths."""
    columns = {name: batch.column(name) for name in names}
    return pa.RecordBatch.from_pydict(
        {name: as_lists(one) if holds_bytes(one.type) else one for name, one in columns.items()}
    )


def check_present(path: Path, name: str, column: pa.Array, first: int) -> None:
    """Raise CorruptArtifact (``nulls``) if a sample of a column of bytes has none.

    `first` is the number of the first sample.
    """
    if not (stored := _part(column, "bytes")).null_count:
        return
    row = stored.is_null().to_pylist().index(True)
    file = _part(column, "path")[row].as_py() if pa.types.is_struct(column.type) else None
    raise CorruptArtifact(
        f"column {name}: sample {first + row:,} has no bytes",
        kind="nulls",
        path=path,
        expected="the bytes of each sample",
        found="a null" if file is None else f"the path {file} alone",
        hint=None if file is None else "save the dataset with save_to_disk, which embeds the files",
    )


@dataclass(frozen=True, eq=False)
class NestedLists:
    """Lists whose outer axes are one.

    `lengths`, int64, and `extents`, int32 of shape ``(rows, axes)``, are those of each sample; `inner` holds
    the elements of all samples, as an Arrow array.
    """

    lengths: Index
    extents: Array
    inner: pa.Array

    @classmethod
    def of(cls, path: Path, name: str, column: pa.Array, axes: int, first: int = 0) -> NestedLists:
        """Return a column with its first axes merged; `first` is the number of its first sample, in errors.

        CorruptArtifact for a null, or (``unequal-shapes``) a sample that is not rectangular.
        """
        counts, extents = np.ones(len(column), np.int64), []
        for _ in range(axes):
            lengths, starts = list_lengths(path, name, column), offsets_of(counts)
            sizes = np.zeros(len(counts), np.int64)
            sizes[counts > 0] = lengths[starts[:-1][counts > 0]]
            wrong = np.flatnonzero(lengths != np.repeat(sizes, counts))
            if wrong.size:
                sample = int(np.searchsorted(starts, wrong[0], side="right")) - 1
                found = sorted(set(lengths[starts[sample] : starts[sample + 1]].tolist()))
                problem = f"column {name}: sample {first + sample:,} is not rectangular"
                lengths_found = f"lists of {found[0]:,} to {found[-1]:,}"
                raise unequal_samples(path, problem, "inner lists of one length", lengths_found)
            counts, column = counts * sizes, column.flatten()
            extents.append(sizes)
        return cls(counts, np.stack(extents, axis=1).astype(np.int32), column)


def list_lengths(path: Path, name: str, column: pa.Array) -> Index:
    """Return the length of each list of a column; CorruptArtifact if some are missing."""
    if column.null_count:
        raise corrupt(path, f"lists in column {name}", f"{column.null_count} nulls", kind="nulls")
    if pa.types.is_fixed_size_list(column.type):
        return np.full(len(column), column.type.list_size, np.int64)
    offsets: Index = column.offsets.to_numpy(zero_copy_only=True).astype(np.int64)
    return np.diff(offsets)


# what pyarrow raises for damaged files
DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError, OverflowError)

VALUES = {"bool": pa.bool_()} | {
    name: getattr(pa, name)() for name in NUMPY_DTYPES if name not in ("bool", *COMPLEX)
}
NAMES = {value: dtype for dtype, value in VALUES.items()}


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema with one column per field, without nulls."""
    return pa.schema([pa.field(f.name, _type(f), nullable=False) for f in schema.fields])


def _type(field: Field) -> pa.DataType:
    kind = VALUES[field.dtype]
    for size in reversed(field.inner):
        kind = pa.list_(pa.field("item", kind, nullable=False), size)
    return pa.large_list(pa.field("item", kind, nullable=False)) if field.is_ragged else kind


def record_batch(schema: pa.Schema, batch: Batch) -> pa.RecordBatch:
    """Return a batch as a record batch, which shares the arrays' memory except for bools."""
    columns = [_column(column.type, batch[column.name]) for column in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(kind: pa.DataType, array: Any) -> pa.Array:
    """Return the column of a C-contiguous array of samples, or of a ragged field."""
    if isinstance(array, Ragged):
        values = _column(kind.value_type, array.values)
        return pa.LargeListArray.from_arrays(pa.array(array.offsets), values, type=kind)
    if not pa.types.is_fixed_size_list(kind):
        return pa.array(array.reshape(-1), kind)
    inner = array.reshape(-1, *array.shape[2:])
    return pa.FixedSizeListArray.from_arrays(_column(kind.value_type, inner), type=kind)


def sample_shape(
    path: Path, name: str, column: pa.Array, may_vary: bool = False, first: int = 0
) -> tuple[tuple[int, ...], str]:
    """Return the shape and dtype of one sample of a non-empty column.

    Reads the lengths of all variable lists; if `may_vary`, the axes up to the last one in which lists differ
    are VARIES. `first` is the number of the first sample, in errors.

    CorruptArtifact if the values are not numbers, bytes are missing (``nulls``), or (``unequal-shapes``) the
    lists differ in length, within a sample where they may vary.
    """
    if isinstance(column.type, pa.FixedShapeTensorType):
        return tuple(column.type.shape), _dtype(path, name, column.type.value_type)
    if holds_bytes(column.type):
        check_present(path, name, column, first)
        if may_vary:
            return (VARIES,), "uint8"
    whole = column = plain(column)
    shape: tuple[int, ...] = ()
    check_no_nulls(path, name, whole, first)
    while not is_leaf(column.type):
        shape, column = (*shape, _size(path, name, column, may_vary)), column.flatten()
    varying = varying_axes(shape)
    if varying > 1:
        NestedLists.of(path, name, whole, varying, first)
    return (*[VARIES] * varying, *shape[varying:]), _dtype(path, name, column.type)


def check_no_nulls(path: Path, name: str, column: pa.Array, first: int | None = None) -> None:
    """Raise CorruptArtifact (``nulls``) if a column or its lists hold nulls.

    `first` is the number of the first sample; None if it is not known.
    """
    if not _has_nulls(column):
        return
    row = next(row for row in range(len(column)) if _has_nulls(column.slice(row, 1)))
    at = "a sample" if first is None else f"sample {first + row:,}"
    problem, found = f"column {name}: {at} is null, or holds one", f"one among {column.type}"
    hint = "fill it or drop its row, as by fillna and dropna of pandas; or select other columns with '::'"
    raise CorruptArtifact(problem, "nulls", path, expected="no nulls", found=found, hint=hint)


def _has_nulls(column: pa.Array) -> bool:
    while not (column.null_count or is_leaf(column.type)):
        column = column.flatten()
    return bool(column.null_count)


def varying_axes(shape: Sequence[int]) -> int:
    """Return the number of axes up to the last that varies."""
    return max((axis + 1 for axis, size in enumerate(shape) if size == VARIES), default=0)


def _dtype(path: Path, name: str, kind: pa.DataType) -> str:
    if kind not in NAMES:
        problem, expected = f"column {name}: unsupported type", f"one of {', '.join(NAMES.values())}"
        raise CorruptArtifact(problem, "unsupported-dtype", path, expected=expected, found=kind)
    return NAMES[kind]


def check_type(path: Path, field: Field, kind: pa.DataType) -> None:
    """Raise CorruptArtifact if a column of this type cannot hold the field.

    A type does not state the length of variable lists, so any length is accepted for them.
    """
    expected = f"{field.name}: {field.dtype} {field.shape}"
    sizes, value = list_sizes(kind)
    if isinstance(kind, pa.FixedShapeTensorType):
        sizes, value = [*kind.shape], kind.value_type
    if holds_extents(field, kind):
        return
    if NAMES.get(value) != field.dtype or not (_fit(sizes, field.merged_shape) or _fit(sizes, field.shape)):
        raise corrupt(path, expected, kind)


def _fit(sizes: Sequence[int | None], shape: Sequence[int]) -> bool:
    """Return whether lists of these sizes, None for variable ones, can hold a shape."""
    pairs = zip(sizes, shape, strict=False)
    return len(sizes) == len(shape) and all(axis == VARIES or size in (None, axis) for size, axis in pairs)


def holds_extents(field: Field, kind: pa.DataType) -> bool:
    """Return whether a field of extents is not stored: it follows from a column of lists of lists."""
    return field.dtype == "int32" and len(field.shape) == 1 and not field.is_ragged and _depth(kind) > 1


def _depth(kind: pa.DataType) -> int:
    """Return the number of lists in each other."""
    return 0 if isinstance(kind, pa.BaseExtensionType) else len(list_sizes(kind)[0])


def list_sizes(kind: pa.DataType) -> tuple[list[int | None], pa.DataType]:
    """Return the size of each of the lists in each other, None if it varies, and the type of the values."""
    sizes, kind = list[int | None](), plain_type(kind)
    while not is_leaf(kind):
        sizes.append(kind.list_size if pa.types.is_fixed_size_list(kind) else None)
        kind = kind.value_type
    return sizes, kind


def columns_of(path: Path, schema: Schema, available: Iterable[str]) -> dict[str, str]:
    """Return the name of each field's column; extents without one follow from the column of their field.

    CorruptArtifact if a column is missing.
    """
    names = fields_by_name(path, available)
    names |= {own: names[one] for one, own in schema.extents.items() if one in names and own not in names}
    for field in schema.fields:
        if field.name not in names:
            raise corrupt(path, f"a column {field.name}", listed(names))
    return {field.name: names[field.name] for field in schema.fields}


def checked_columns(path: Path, schema: Schema, columns: pa.Schema) -> dict[str, str]:
    """Return the name of each field's column; CorruptArtifact if one is missing or of another type."""
    names = columns_of(path, schema, columns.names)
    for field in schema.fields:
        check_type(path, field, columns.field(names[field.name]).type)
    return names


def plain(column: pa.Array) -> pa.Array:
    """Return the storage of a column of an extension type, bytes as lists; any other column itself."""
    if isinstance(column.type, pa.BaseExtensionType):
        return column.storage
    return as_lists(column) if holds_bytes(column.type) else column


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of what `plain` returns."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    return list_type(kind) if holds_bytes(kind) else kind


def is_leaf(kind: pa.DataType) -> bool:
    """Return True for a type that is not a list."""
    return not (pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _size(path: Path, name: str, column: pa.Array, may_vary: bool) -> int:
    """Return the common length of all lists in a column, or VARIES if they may differ and do."""
    if pa.types.is_fixed_size_list(column.type):
        return int(column.type.list_size)
    lengths = list_lengths(path, name, column)
    if len(lengths) and lengths.min() != lengths.max():
        if may_vary:
            return VARIES
        raise not_fixed(path, f"column {name}", f"lists of {lengths.min()} to {lengths.max()}")
    return int(lengths[0]) if len(lengths) else 0


def selected_columns(
    path: Path, columns: pa.Schema, fields: Sequence[Field], chosen: Sequence[str]
) -> list[str]:
    """Return the columns to read: those of `fields`, those of `chosen` names, or all but indexes of pandas.

    CorruptArtifact (``unsupported-dtype``) if some hold neither numbers nor bytes, with the selection of the
    others.
    """
    names, requested = fields_by_name(path, columns.names), {field.name for field in fields}
    if requested:
        return [name for field, name in names.items() if field in requested]
    data = [name for name in columns.names if not INDEX.fullmatch(name)] or columns.names
    taken = select_arrays(path, columns.names, chosen) if chosen else data
    refused = {one.name: one.type for one in columns if list_sizes(one.type)[1] not in NAMES}
    if wrong := {name: kind for name, kind in refused.items() if name in taken}:
        raise unstorable_columns(path, wrong, [name for name in columns.names if name not in refused])
    return list(taken)


def ragged_of(path: Path, field: Field, column: pa.Array) -> Ragged:
    """Return the lists of a column, as a view unless they hold bools; CorruptArtifact if they are no such."""
    if field.extents and _depth(column.type) == len(field.shape):
        nested = NestedLists.of(path, field.name, column, field.varying)
        inner = Field(field.name, field.inner, field.dtype)
        elements = values(leaf_of(path, inner, nested.inner))
        return Ragged(elements.reshape(-1, *field.inner), offsets_of(nested.lengths))
    column, expected = plain(column), f"{field.name}: lists of {field.dtype} {field.inner}"
    check_no_nulls(path, field.name, column)
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        raise corrupt(path, expected, column.type)
    offsets = column.offsets.to_numpy(zero_copy_only=True).astype(np.int64)
    begin, end = int(offsets[0]), int(offsets[-1])
    if not 0 <= begin <= end <= len(column.values):
        raise corrupt(path, f"{expected} among {len(column.values):,}", f"{begin:,} to {end:,}")
    offsets -= begin
    check_offsets(offsets, end - begin, field.name, path)
    inner = Field(field.name, field.inner, field.dtype)
    leaf = leaf_of(path, inner, column.values.slice(begin, end - begin))
    return Ragged(values(leaf).reshape(-1, *field.inner), offsets)


def leaf_of(path: Path, field: Field, column: pa.Array) -> pa.Array:
    """Return the flat values of a non-empty column, in sample order.

    Of variable lists, only the total number of values is checked; `sample_shape` checks each length.

    CorruptArtifact if shape, dtype or number of values differ from `field`, or there are nulls.
    """
    expected, rows = f"{field.name}: {field.dtype} {field.shape}", len(column)
    if isinstance(column.type, pa.FixedShapeTensorType):
        return _tensor_leaf(path, field, column)
    column, count = plain(column), rows
    check_no_nulls(path, field.name, column)
    for size in field.shape:
        if is_leaf(column.type):
            raise corrupt(path, expected, column.type)
        if pa.types.is_fixed_size_list(column.type) and column.type.list_size != size:
            raise corrupt(path, expected, f"{column.type}")
        column, count = column.flatten(), count * size
        if len(column) != count:
            raise corrupt(path, f"{expected} in {rows} rows", f"{len(column)} values")
    if NAMES.get(column.type) != field.dtype or len(column) != rows * field.elements:
        raise corrupt(path, expected, f"{len(column)} of {column.type}")
    return column


def _tensor_leaf(path: Path, field: Field, column: pa.Array) -> pa.Array:
    """Return the flat values of a column of Arrow's fixed-shape tensors."""
    kind, stored = column.type, column.storage
    permutation = list(kind.permutation or range(len(kind.shape)))
    if permutation != sorted(permutation):
        raise corrupt(path, f"{field.name} in the order of its axes", f"permutation {permutation}")
    if tuple(kind.shape) != field.shape or stored.type.list_size != field.elements:
        raise corrupt(path, f"{field.name}: {field.dtype} {field.shape}", kind)
    flat = Field(field.name, (field.elements,), field.dtype)
    return leaf_of(path, flat, stored)


def values(leaf: pa.Array) -> npt.NDArray[Any]:
    """Return the values as a 1-D array: a view for numbers, a copy for bools, which are stored as bits."""
    if pa.types.is_boolean(leaf.type):
        return np.asarray(leaf.to_numpy(zero_copy_only=False))
    dtype = np.dtype(NAMES[leaf.type])
    data = leaf.buffers()[1]
    if data is None:
        return np.empty(0, dtype)
    return np.frombuffer(data, dtype, len(leaf), leaf.offset * dtype.itemsize)


def arrays(path: Path, schema: Schema, table: pa.Table | pa.RecordBatch, names: dict[str, str]) -> Batch:
    """Return the rows of a table as arrays; `names` maps each field to its column."""
    batch: dict[str, Any] = dict(schema.empty(0))
    for field in schema.fields:
        column = table.column(names[field.name])
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        parts = [rows_of(path, field, chunk) for chunk in chunks if len(chunk)]
        batch[field.name] = joined([batch[field.name], *parts])
    return batch


def rows_of(path: Path, field: Field, column: pa.Array) -> Any:
    """Return a field's rows of a non-empty column, as views of its memory where it holds them so."""
    if field.is_ragged:
        return ragged_of(path, field, column)
    if holds_extents(field, column.type):
        return NestedLists.of(path, field.name, column, *field.shape).extents
    return values(leaf_of(path, field, column)).reshape(-1, *field.shape)


@dataclass(frozen=True)
class Table:
    """A table that another program wrote: its file, columns and rows.

    `pieces` yields names and values of these columns, piece by piece.
    """

    file: Path
    schema: pa.Schema
    rows: int
    pieces: Callable[[Sequence[str]], Iterable[tuple[str, pa.Array]]]


def schema_of(path: Path, tables: Iterable[Table], fields: Sequence[Field], chosen: Sequence[str]) -> Schema:
    """Return the schema of the tables at a path: of all columns, of those of `fields`, or of `chosen` names.

    CorruptArtifact if pieces of a column do not fit each other, or there are no rows.
    """
    shapes, first, taken = dict[str, tuple[tuple[int, ...], str]](), list[Table](), list[str]()
    elements, rows, samples = Counter[str](), Counter[str](), 0
    for table in tables:
        try:
            names = selected_columns(path, table.schema, fields, chosen)
        except CorruptArtifact as error:  # its hint selects columns of the path
            raise error.changed(problem=f"{error.problem}, in {table.file.name}") from None
        first, taken, samples = first or [table], taken or names, samples + table.rows
        if set(names) != set(taken):
            problem, hint = f"its columns are not those of {first[0].file.name}", "select others with '::'"
            fields_of = {"expected": listed(taken), "found": listed(names)}
            raise CorruptArtifact(problem, "missing-array", table.file, **fields_of, hint=hint)
        for name, piece in table.pieces(names):
            shape = sample_shape(table.file, name, piece, True, rows[name])
            rows[name] += len(piece)
            elements[name] += _elements(plain(piece))
            shapes[name] = _common(table.file, name, shapes.get(name, shape), shape)
    path, every = first[0].file, first[0].schema.names
    if not samples:
        raise CorruptArtifact("it holds no rows", kind="empty", path=path)
    inner = {name: math.prod(size for size in shape if size != VARIES) for name, (shape, _) in shapes.items()}
    named = set(own_extents(fields).values()) - set(every)
    schema = arrays_schema(
        path,
        {name: ((samples, *shape), dtype) for name, (shape, dtype) in shapes.items()},
        every,
        [field for field in fields if field.name not in named],
        {name: count // max(1, inner[name]) for name, count in elements.items()},
    )
    return replace(schema, fields=with_extents(schema.fields))


def _common(
    path: Path, name: str, known: tuple[tuple[int, ...], str], other: tuple[tuple[int, ...], str]
) -> tuple[tuple[int, ...], str]:
    """Return the shape, with the axes in which two pieces differ, and the dtype of both."""
    (shape, dtype), (other_shape, other_dtype) = known, other
    if dtype != other_dtype:
        problem = f"column {name}: its type changes"
        hint = "cast it to one type in all files, as by pandas' astype"
        raise CorruptArtifact(problem, "unequal-shapes", path, expected=dtype, found=other_dtype, hint=hint)
    if len(shape) != len(other_shape):
        raise not_fixed(path, f"column {name}", f"{known} and {other}")
    pairs = zip(shape, other_shape, strict=True)
    varying = varying_axes([size if size == own else VARIES for size, own in pairs])
    return (*[VARIES] * varying, *other_shape[varying:]), dtype


def _elements(column: pa.Array) -> int:
    return len(column) if is_leaf(column.type) else _elements(column.flatten())


def column_notes(path: Path, schema: Schema, columns: pa.Schema) -> list[Finding]:
    """Return notes if fields of a table at `path` are columns of bytes, or an index of pandas is not read."""
    names = columns_of(path, schema, columns.names)
    left = {name for name in columns.names if INDEX.fullmatch(name)}.difference(names.values())
    notes = parts_not_read("column", left, "")
    encoded = [name for name, own in names.items() if holds_bytes(columns.field(own).type)]
    if encoded:
        message = f"{listed(encoded)}: encoded bytes, not decoded"
        notes.append(Finding("encoded-bytes", message, DECODING, {"fields": ", ".join(encoded)}))
    return notes
