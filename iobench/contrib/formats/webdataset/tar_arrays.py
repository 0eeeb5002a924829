"""Arrays in files of tar archives: .npy data, or raw bytes of a field that is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from iobench.base.errors import corrupt
from iobench.contrib.formats.shared.external import check_lengths, unequal_samples
from iobench.contrib.formats.shared.placed_reader import Maps, runs
from iobench.contrib.formats.webdataset.tar_columns import TarColumn
from iobench.formats import Array, Field, Index
from iobench.formats.npy_header import LONGEST, header_of, read_plain_header


def start_of(maps: Maps, column: TarColumn, row: int) -> bytes:
    """Return the first bytes of a sample's file, with all of its .npy header."""
    return bytes(column.stored(maps, row, LONGEST))


def bytes_before(maps: Maps, field: Field, column: TarColumn, first: int, has_header: bool) -> Index:
    """Return the bytes before each array in its file; CorruptArtifact if headers or sizes do not match.

    `first` is the number of the first sample, in errors.
    """
    file, _, size = column.arrays()
    header = np.zeros(len(file), np.int64)
    if has_header:
        header[:] = _headers(maps, field, column, first)
    check_lengths(field, size - header, field.sample_bytes, "bytes", lambda row: maps.files[file[row]], first)
    return header


def _headers(maps: Maps, field: Field, column: TarColumn, first: int) -> Index:
    """Return the length of each sample's .npy header; parses only headers other than the usual ones."""
    file, offset, size = column.arrays()
    usual, which = _usual_headers(field, size)
    lengths, width = np.zeros(len(file), np.int64), usual.shape[1]
    for number in np.unique(file).tolist():
        at = np.flatnonzero(file == number)
        inside = at[offset[at] + width <= len(maps[number])]
        for some, starts in runs(maps[number], offset[inside], width):
            same = (starts == usual[which[inside[some]]]).all(1)
            lengths[inside[some]] = np.where(same, width, 0)
    for row in np.flatnonzero(lengths == 0).tolist():
        path, what = column.path(maps, row), f"{field.name} of sample {first + row}"
        header = read_plain_header(start_of(maps, column, row), what, path)
        lengths[row] = header.offset
        if not holds(field, header.dtype.name, header.shape):
            found = f"{header.dtype} {header.shape}"
            raise unequal_samples(path, f"{what} has another shape or dtype", field.typed, found)
        if header.data_bytes != size[row] - header.offset:
            raise corrupt(path, f"{header.data_bytes:,} bytes of {what}", f"{size[row] - header.offset:,}")
    return lengths


def _usual_headers(field: Field, size: Index) -> tuple[Array, Index]:
    """Return the .npy headers that NumPy writes, uint8 (headers, bytes), and the number of each file's.

    A ragged field has one for each different size of its files.
    """
    if not field.is_ragged:
        return np.frombuffer(header_of(field), np.uint8)[None], np.zeros(len(size), np.int64)
    row = replace(field, shape=field.inner)
    different, which = np.unique(size, return_inverse=True)
    width = len(header_of(row, 0))
    lengths = np.maximum(0, different - width) // field.sample_bytes
    headers = [header_of(row, length) for length in lengths.tolist()]
    known = b"".join(header if len(header) == width else bytes(width) for header in headers)
    return np.frombuffer(known, np.uint8).reshape(-1, width), which


def holds(field: Field, dtype: str, shape: tuple[int, ...]) -> bool:
    """Return whether an array of this dtype and shape is a sample of a field."""
    same = shape[1:] == field.inner and len(shape) > 0 if field.is_ragged else shape == field.shape
    return same and dtype == field.dtype


def fits(field: Field, size: Any) -> Any:
    """Return whether samples of a field have so many bytes."""
    return size % field.sample_bytes == 0 if field.is_ragged else size == field.sample_bytes
