"""Columns of bytes: binary ones, and files that Hugging Face `datasets` embeds in a table, such as images.

It stores a file as a struct of its bytes and its path. Both kinds are read as lists of uint8.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from iobench.base.errors import CorruptArtifact
from iobench.base.finding import Finding
from iobench.base.text import listed

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


def encoded_notes(names: Sequence[str]) -> list[Finding]:
    """Return a note that names the fields that are bytes, if there are any."""
    if not names:
        return []
    message = f"{listed(names)}: encoded bytes, not decoded"
    return [Finding("encoded-bytes", message, DECODING, {"fields": ", ".join(names)})]
