"""Conversion between fields and Arrow columns.

A field of shape (a, b) is a fixed-size list of `a` fixed-size lists of `b`, and one of shape (*, b) a large
list of them. Files of other programs may also hold `arrow.fixed_shape_tensor`, and lists of 32-bit offsets;
a column of lists that all have one length is a field of fixed shape, and one of lists of lists that differ in
length a field in which several axes vary, with that of its extents. A column of bytes is a ragged field.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.base.text import listed
from iobench.contrib.formats.shared.byte_columns import as_lists, check_present, holds_bytes, list_type
from iobench.contrib.formats.shared.external import not_fixed
from iobench.contrib.formats.shared.nested_lists import NestedLists
from iobench.formats import (
    VARIES,
    Array,
    Batch,
    Field,
    Ragged,
    Schema,
    check_offsets,
    fields_by_name,
    joined,
    offsets_of,
    raw_bytes,
    select_arrays,
    unstorable_columns,
)

# what pyarrow raises for damaged files
DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError, OverflowError)

VALUES = {
    "bool": pa.bool_(),
    "uint8": pa.uint8(),
    "int8": pa.int8(),
    "uint16": pa.uint16(),
    "int16": pa.int16(),
    "uint32": pa.uint32(),
    "int32": pa.int32(),
    "uint64": pa.uint64(),
    "int64": pa.int64(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
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
        return _leaf(kind, array.reshape(-1))
    inner = array.reshape(-1, *array.shape[2:])
    return pa.FixedSizeListArray.from_arrays(_column(kind.value_type, inner), type=kind)


def _leaf(kind: pa.DataType, flat: Array) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pa.array(flat)
    return pa.Array.from_buffers(kind, len(flat), [None, pa.py_buffer(raw_bytes(flat))])


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
    while not is_leaf(column.type):
        shape, column = (*shape, _size(path, name, column, may_vary)), column.flatten()
    varying = varying_axes(shape)
    if varying > 1:
        NestedLists.of(path, name, whole, varying, first)
    return (*[VARIES] * varying, *shape[varying:]), _dtype(path, name, column.type)


def varying_axes(shape: Sequence[int]) -> int:
    """Return the number of axes up to the last that varies."""
    return max((axis + 1 for axis, size in enumerate(shape) if size == VARIES), default=0)


def _dtype(path: Path, name: str, kind: pa.DataType) -> str:
    if kind not in NAMES:
        raise CorruptArtifact(
            f"column {name}: unsupported type",
            kind="unsupported-dtype",
            path=path,
            expected=f"one of {', '.join(NAMES.values())}",
            found=kind,
        )
    return NAMES[kind]


def check_type(path: Path, field: Field, kind: pa.DataType) -> None:
    """Raise CorruptArtifact if a column of this type cannot hold the field.

    A type does not state the length of variable lists, so any length is accepted for them.
    """
    expected = f"{field.name}: {field.dtype} {field.shape}"
    if isinstance(kind, pa.FixedShapeTensorType):
        sizes, value = [*kind.shape], kind.value_type
    else:
        sizes, value = [], plain_type(kind)
        while not is_leaf(value):
            sizes.append(value.list_size if pa.types.is_fixed_size_list(value) else None)
            value = value.value_type
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
    return 0 if isinstance(kind, pa.BaseExtensionType) or is_leaf(kind) else 1 + _depth(kind.value_type)


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
    offsets = column.offsets.to_numpy(zero_copy_only=True)
    lengths = offsets[1:] - offsets[:-1]
    if len(lengths) and lengths.min() != lengths.max():
        if may_vary:
            return VARIES
        raise not_fixed(path, f"column {name}", f"lists of {lengths.min()} to {lengths.max()}")
    return int(lengths[0]) if len(lengths) else 0


def selected_columns(
    path: Path, columns: pa.Schema, fields: Sequence[Field], chosen: Sequence[str]
) -> list[str]:
    """Return the columns to read: those of `fields`, those of `chosen` names, or all.

    CorruptArtifact (``unsupported-dtype``) if all are read and some hold neither numbers nor bytes, with the
    selection of the others.
    """
    names, requested = fields_by_name(path, columns.names), {field.name for field in fields}
    if requested:
        return [name for field, name in names.items() if field in requested]
    if chosen:
        return select_arrays(path, columns.names, chosen)
    refused = {
        one.name: one.type
        for one in columns
        if not isinstance(one.type, pa.BaseExtensionType)
        and is_leaf(plain_type(one.type))
        and one.type not in NAMES
    }
    if refused:
        raise unstorable_columns(path, refused, [name for name in columns.names if name not in refused])
    return list(columns.names)


def ragged_of(path: Path, field: Field, column: pa.Array) -> Ragged:
    """Return the lists of a column, as a view unless they hold bools; CorruptArtifact if they are no such."""
    if field.extents and _depth(column.type) == len(field.shape):
        nested = NestedLists.of(path, field.name, column, field.varying)
        inner = Field(field.name, field.inner, field.dtype)
        elements = values(leaf_of(path, inner, nested.inner))
        return Ragged(elements.reshape(-1, *field.inner), offsets_of(nested.lengths))
    column, expected = plain(column), f"{field.name}: lists of {field.dtype} {field.inner}"
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    if column.null_count or not is_list:
        nulls = "nulls" if column.null_count else None
        raise corrupt(path, expected, f"{column.null_count} nulls in {column.type}", kind=nulls)
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
    for size in field.shape:
        if column.null_count or is_leaf(column.type):
            nulls = "nulls" if column.null_count else None
            raise corrupt(path, expected, f"{column.null_count} nulls in {column.type}", kind=nulls)
        if pa.types.is_fixed_size_list(column.type) and column.type.list_size != size:
            raise corrupt(path, expected, f"{column.type}")
        column, count = column.flatten(), count * size
        if len(column) != count:
            raise corrupt(path, f"{expected} in {rows} rows", f"{len(column)} values")
    if NAMES.get(column.type) != field.dtype or len(column) != rows * field.elements or column.null_count:
        nulls = "nulls" if column.null_count else None
        raise corrupt(
            path, expected, f"{column.null_count} nulls in {len(column)} of {column.type}", kind=nulls
        )
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
        parts = [_part(path, field, chunk) for chunk in chunks if len(chunk)]
        batch[field.name] = joined([batch[field.name], *parts])
    return batch


def _part(path: Path, field: Field, column: pa.Array) -> Any:
    if field.is_ragged:
        return ragged_of(path, field, column)
    if holds_extents(field, column.type):
        return NestedLists.of(path, field.name, column, *field.shape).extents
    return values(leaf_of(path, field, column)).reshape(-1, *field.shape)
