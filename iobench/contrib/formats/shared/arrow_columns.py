"""Conversion between fields and Arrow columns.

A field of shape (a, b) is a fixed-size list of `a` fixed-size lists of `b`. Files of other programs may
also hold `arrow.fixed_shape_tensor`, and variable lists if all of them have one length.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.contrib.formats.shared.external import not_fixed
from iobench.formats import Array, Batch, Field, Schema, raw_bytes

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
    for size in reversed(field.shape):
        kind = pa.list_(pa.field("item", kind, nullable=False), size)
    return kind


def record_batch(schema: pa.Schema, batch: Batch) -> pa.RecordBatch:
    """Return a batch as a record batch, which shares the arrays' memory except for bools."""
    columns = [_column(column.type, batch[column.name]) for column in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(kind: pa.DataType, array: Array) -> pa.Array:
    """Return the column of a C-contiguous array of samples."""
    if not pa.types.is_fixed_size_list(kind):
        return _leaf(kind, array.reshape(-1))
    inner = array.reshape(-1, *array.shape[2:])
    return pa.FixedSizeListArray.from_arrays(_column(kind.value_type, inner), type=kind)


def _leaf(kind: pa.DataType, flat: Array) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pa.array(flat)
    return pa.Array.from_buffers(kind, len(flat), [None, pa.py_buffer(raw_bytes(flat))])


def sample_shape(path: Path, name: str, column: pa.Array) -> tuple[tuple[int, ...], str]:
    """Return the shape and dtype of one sample of a non-empty column.

    Reads the lengths of all variable lists.

    Raises
    ------
    CorruptArtifact
        The values are not numbers, or kind ``unequal-shapes``: the lists differ in length.
    """
    if isinstance(column.type, pa.FixedShapeTensorType):
        return tuple(column.type.shape), _dtype(path, name, column.type.value_type)
    column = plain(column)
    shape: tuple[int, ...] = ()
    while not is_leaf(column.type):
        size = _size(path, name, column)
        shape, column = (*shape, size), column.flatten()
    return shape, _dtype(path, name, column.type)


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
        sizes, value = [], kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        while not is_leaf(value):
            sizes.append(value.list_size if pa.types.is_fixed_size_list(value) else None)
            value = value.value_type
    fits = [size in (None, axis) for size, axis in zip(sizes, field.shape, strict=False)]
    if len(sizes) != len(field.shape) or not all(fits) or NAMES.get(value) != field.dtype:
        raise corrupt(path, expected, kind)


def plain(column: pa.Array) -> pa.Array:
    """Return the storage of a column of an extension type; any other column itself."""
    return column.storage if isinstance(column.type, pa.BaseExtensionType) else column


def is_leaf(kind: pa.DataType) -> bool:
    """Return True for a type that is not a list."""
    return not (pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _size(path: Path, name: str, column: pa.Array) -> int:
    """Return the common length of all lists in a column."""
    if pa.types.is_fixed_size_list(column.type):
        return int(column.type.list_size)
    offsets = column.offsets.to_numpy(zero_copy_only=True)
    lengths = offsets[1:] - offsets[:-1]
    if len(lengths) and lengths.min() != lengths.max():
        raise not_fixed(path, f"column {name}", f"lists of {lengths.min()} to {lengths.max()}")
    return int(lengths[0]) if len(lengths) else 0


def leaf_of(path: Path, field: Field, column: pa.Array) -> pa.Array:
    """Return the flat values of a non-empty column, in sample order.

    Of variable lists, only the total number of values is checked; `sample_shape` checks each length.

    Raises
    ------
    CorruptArtifact
        Shape, dtype or number of values differ from `field`, or there are nulls.
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
    batch = {}
    for field in schema.fields:
        column = table.column(names[field.name])
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        parts = [values(leaf_of(path, field, chunk)) for chunk in chunks if len(chunk)]
        whole = parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, field.dtype), *parts])
        batch[field.name] = whole.reshape(-1, *field.shape)
    return batch
