"""Reading: rows of an open artifact into the caller's memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from iobench.formats._placement import Blocks, Placement
from iobench.formats._schema import Array, Batch, Schema

T = TypeVar("T")
Rows: TypeAlias = "slice | npt.NDArray[np.int64]"
Convert: TypeAlias = Callable[[Array], Any]
Build: TypeAlias = Callable[[], "dict[str, Array]"]
LoadOrBuild: TypeAlias = Callable[[str, Build], "dict[str, Array]"]
TimingWrapper: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


def identity(value: T) -> T:
    """The value itself."""
    return value


def read_only(array: Array) -> Array:
    """The array made read-only, which says that it is a view of a file, of which no byte has moved."""
    array.flags.writeable = False
    return array


def build_now(name: str, find: Build) -> dict[str, Array]:
    """What `find` gives: nothing is kept."""
    return find()


class Reader(ABC):
    """Fills a caller's buffers from rows. Reading is safe from several threads at once.

    `load_or_build(name, build)`: flat arrays that are found by reading much of the files, such as a byte offset
    for each row. Whoever opens a reader may set it to give what `find` gave an earlier time, as long as
    the files are the same; the arrays may be maps of a file, and are not to be written to. `name` is a
    word, one for each list that a format has.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.load_or_build: LoadOrBuild = build_now
        self._specs = {f.name: (f.shape, np.dtype(f.dtype)) for f in schema.fields}

    def __len__(self) -> int:
        return self.schema.samples

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def read(self, rows: Rows, out: Mapping[str, Array]) -> None:
        """Overwrite `out` (field → C-contiguous array, leading axis = rows) with these rows.

        `rows` is a slice, or int64 indices in any order, duplicates allowed. `out` may hold
        a subset of the fields. IndexError outside 0..len-1 (negative indices included),
        ValueError where an array has the wrong shape, dtype or layout.
        """
        checked, count = self._checked(rows)
        self._check_out(count, out)
        self._fill(checked, out)

    def batch(self, rows: Rows) -> Batch:
        """These rows in fresh arrays; IndexError outside 0..len-1."""
        checked, count = self._checked(rows)
        out = {name: np.empty((count, *shape), dtype) for name, (shape, dtype) in self._specs.items()}
        self._fill(checked, out)
        return out

    @abstractmethod
    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """One sample, each field without the leading axis and passed through `convert`.

        For map-style Datasets, which call it once per sample: `row` is the caller's promise to be
        in 0..len-1, and an array may be a read-only view of the file, of which no byte has moved.
        """

    def native(self, rows: Rows) -> Any:
        """One batch the way the format's own library advises; fresh arrays unless overridden.

        A dict of arrays, of which read-only ones are views of a file, or a tensorclass.
        """
        return self.batch(rows)

    def time_decoding(self, timed: TimingWrapper) -> None:
        """Have `timed` wrap what decodes many samples, for a profile; nothing where a library does that."""
        return

    def placement(self) -> Mapping[str, Placement]:
        """Where each field lies that is stored as it is in memory; none unless overridden.

        May read indices. Fields that are neither here nor in `blocks` are read by `read` alone.
        """
        return {}

    def blocks(self) -> Sequence[Blocks]:
        """Where the fields lie that are stored encoded, no field twice; none unless overridden."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Let go of every file and map. A second call does nothing; a later read is a ValueError."""

    @abstractmethod
    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        """Read rows start..stop-1, at least one, into checked `out`."""

    @abstractmethod
    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        """Read checked, non-empty `rows` into checked `out`."""

    def _fill(self, rows: Rows, out: Mapping[str, Array]) -> None:
        if not isinstance(rows, slice):
            if len(rows):
                self._read_rows(rows, out)
        elif rows.start < rows.stop:
            self._read_slice(rows.start, rows.stop, out)

    def _checked(self, rows: Any) -> tuple[Rows, int]:
        """The rows as a slice of step 1 or as int64 in range, and how many they are."""
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step == 1:
                return slice(start, stop), max(0, stop - start)
            rows = np.arange(start, stop, step)
        index = np.asarray(rows)
        if index.ndim != 1 or (index.size and index.dtype.kind not in "iu"):
            raise ValueError(f"rows must be one axis of integers, not {index.dtype} {index.shape}")
        index = index.astype(np.int64, copy=False)
        if index.size and (int(index.min()) < 0 or int(index.max()) >= len(self)):
            raise IndexError(f"rows {index.min()}..{index.max()} are not all in 0..{len(self) - 1}")
        return index, len(index)

    def _check_out(self, count: int, out: Mapping[str, Array]) -> None:
        for name, array in out.items():
            self.schema.field(name)  # KeyError lists the known ones
            shape, dtype = self._specs[name]
            if array.shape != (count, *shape) or array.dtype != dtype:
                raise ValueError(
                    f"out[{name!r}] is {array.dtype} {array.shape}, these rows are {dtype} {(count, *shape)}"
                )
            if not array.flags.c_contiguous:
                raise ValueError(f"out[{name!r}] is not C-contiguous")
