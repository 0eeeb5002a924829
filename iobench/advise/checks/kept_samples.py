"""Samples of a dataset kept in memory, as after a conversion to arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset


class KeptSamples(Dataset[Any]):
    """Samples in memory, by row: each tensor and array is a row of one that holds those of all samples.

    A sample costs what it does where a user stores arrays: a separate tensor for each would cost twice that.
    """

    def __init__(self, count: int) -> None:
        self._count, self.rows = count, list[int]()  # of the whole dataset, and rows that are kept
        self._kind: type | None = None  # of container that a sample is
        self._columns: dict[Any, Any] = {}

    def keep(self, row: int, sample: Any) -> None:
        """Keep a sample, unless it is kept already."""
        if not 0 <= row < self._count:
            raise IndexError(row)
        values = _values(sample)
        if not self.rows:
            self._kind = type(sample) if type(sample) in (dict, tuple, list) else None
            self._columns = {name: _column(value, self._count) for name, value in values.items()}
        for name, value in values.items():
            if not _holds(self._columns[name], value):  # samples differ in length
                self._columns[name] = _Objects(self._columns[name])
            self._columns[name][row] = value
        self.rows.append(row)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> Any:
        if self._kind is None:
            return self._columns[None][row]
        if self._kind is dict:
            return {name: column[row] for name, column in self._columns.items()}
        values = [column[row] for column in self._columns.values()]
        return tuple(values) if self._kind is tuple else values


class KeptBatches:
    """Batches of rows like those of a batch sampler; rows that are not kept are replaced by kept ones."""

    def __init__(self, batches: Any, rows: Sequence[int]) -> None:
        self._batches, self._rows, self._kept = batches, rows, set(rows)

    def __iter__(self) -> Iterator[list[int]]:
        rows, kept = self._rows, self._kept
        for batch in self._batches:
            yield [row if row in kept else rows[row % len(rows)] for row in batch]

    def __len__(self) -> int:
        return len(self._batches)


class _Objects(list[Any]):
    """Values that are no rows of an array; what is done to the containers of one does not last."""

    def __getitem__(self, row: Any) -> Any:
        return _views(super().__getitem__(row))


def _values(sample: Any) -> dict[Any, Any]:
    """Return the values in a sample by name or position; one without a name if it is no container."""
    if type(sample) is dict:
        return sample
    return dict(enumerate(sample)) if type(sample) in (tuple, list) else {None: sample}


def _column(value: Any, count: int) -> Any:
    """Return an empty column for values like this one."""
    if isinstance(value, torch.Tensor) and value.shape and value.device.type == "cpu":
        return torch.empty((count, *value.shape), dtype=value.dtype)
    if isinstance(value, np.ndarray) and value.shape and value.dtype.kind in "biufc":
        return np.empty((count, *value.shape), value.dtype)
    return [None] * count if isinstance(value, (int, float, str, bytes)) else _Objects([None] * count)


def _holds(column: Any, value: Any) -> bool:
    """Return True if a column can hold a value."""
    if isinstance(column, list):
        return True
    same = type(column) is type(value)
    return same and column.dtype == value.dtype and column.shape[1:] == value.shape


def _views(value: Any) -> Any:
    """Return a value with views of its tensors and arrays."""
    if hasattr(value, "shape") and value.shape:
        return value[:]
    if isinstance(value, dict):
        return {name: _views(one) for name, one in value.items()}
    return type(value)(map(_views, value)) if type(value) in (list, tuple) else value
