"""Readers of an open artifact: rows into the caller's memory, mapped arrays, first rows of another reader."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from iobench.formats.placement import Blocks, Placement
from iobench.formats.ragged import Ragged, joined
from iobench.formats.schema import Array, Batch, Schema

T = TypeVar("T")
Rows: TypeAlias = "slice | npt.NDArray[np.int64]"
Convert: TypeAlias = Callable[[Array], Any]
Build: TypeAlias = Callable[[], "Iterable[dict[str, Array]]"]
LoadOrBuild: TypeAlias = Callable[[str, Build], "dict[str, Array]"]
TimingWrapper: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass
class Epoch:
    """Epoch that a reader reads, and the seed of its loader: random parts of samples follow from both.

    Those of the first epoch with seed 0 are the verified ones.
    """

    number: int = 0
    seed: int = 0


def identity(value: T) -> T:
    """Return the value unchanged."""
    return value


def read_only(array: Array) -> Array:
    """Make the array read-only, which marks it as a view of a file of which nothing was copied."""
    array.flags.writeable = False
    return array


def unclosed(resource: T | None) -> T:
    """Return what a reader holds until it is closed; ValueError afterwards, when it is None."""
    if resource is None:
        raise ValueError("this reader is closed")
    return resource


def build_now(name: str, build: Build) -> dict[str, Array]:
    """Build the index `name` in memory; the `LoadOrBuild` that caches nothing."""
    pieces = list(build())
    if len(pieces) == 1:
        return pieces[0]
    joined = {}
    for array in list(pieces[0]):  # one at a time, and its pieces go: twice the index would be too much
        joined[array] = np.concatenate([piece.pop(array) for piece in pieces])
    return joined


def only_sample(array: Any) -> Array:
    """Return the sample of a field of one sample, without the leading axis."""
    sample: Array = array.values if isinstance(array, Ragged) else array[0, ...]
    return sample


def index_of(rows: Rows) -> npt.NDArray[np.int64]:
    """Return rows as int64 indices."""
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


def shares(first: npt.NDArray[np.int64], rows: Rows) -> Iterator[tuple[int, Rows, Any]]:
    """Yield each part that holds some rows: its number, these rows counted from its first, and their slots.

    `first` is the first row of each part, and then the number of all rows.
    """
    if isinstance(rows, slice):
        low, number = rows.start, int(np.searchsorted(first, rows.start, side="right")) - 1
        while low < rows.stop:
            start, stop = int(first[number]), int(first[number + 1])
            if (high := min(stop, rows.stop)) > low:
                yield number, slice(low - start, high - start), slice(low - rows.start, high - rows.start)
            low, number = stop, number + 1
        return
    numbers = np.searchsorted(first, rows, side="right") - 1
    order = np.argsort(numbers, kind="stable")
    found, edges = np.unique(numbers[order], return_index=True)
    for number, slots in zip(found.tolist(), np.split(order, edges[1:]), strict=False):  # no rows: one part
        yield number, rows[slots] - first[number], slots


def gathered(parts: Sequence[Batch], slots: Sequence[Any]) -> Batch:
    """Return the batch of several, with the rows of each in its slots as of `shares`."""
    batch = {name: joined([part[name] for part in parts]) for name in parts[0]}
    if not slots or isinstance(slots[0], slice):
        return batch
    order = np.argsort(np.concatenate(slots))
    return {name: array[order] for name, array in batch.items()}


class Reader(ABC):
    """Fills a caller's buffers with rows. Reading is safe from several threads at once.

    Attributes
    ----------
    schema : Schema
        Samples and fields of the artifact.
    load_or_build : callable
        ``load_or_build(name, build)`` returns flat arrays that take a scan of the files to build, such as
        a byte offset per row. `build` yields them in pieces, which are joined, so that a cache can write
        them without holding them. The opener of a reader may replace `load_or_build` by a cache that
        returns the arrays of an earlier `build` while the files are unchanged. The arrays may be memory
        maps and must not be written to. `name` identifies one index of the format.
    epoch : Epoch
        Is set by a loader whose epochs shall differ in more than their order, while nothing is read.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.load_or_build: LoadOrBuild = build_now
        self.epoch = Epoch()
        self._timed: TimingWrapper = identity
        self._specs = {f.name: (f.shape, np.dtype(f.dtype)) for f in schema.fields if not f.is_ragged}

    def __len__(self) -> int:
        return self.schema.samples

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def read(self, rows: Rows, out: Mapping[str, Array]) -> None:
        """Read rows into the caller's arrays.

        Parameters
        ----------
        rows : slice or int64 array
            A slice, or indices in any order; duplicates are allowed.
        out : mapping of str to array
            C-contiguous array per field, of shape ``(rows, *field.shape)``, overwritten wholly. May hold a
            subset of the fields. Ragged fields are only read by `batch` and `sample`.

        Raises
        ------
        IndexError
            A row is outside 0..len-1, negative indices included.
        ValueError
            An array has the wrong shape, dtype or layout, or the reader is closed.
        """
        checked, count = self._checked(rows)
        self._check_out(count, out)
        self._fill(checked, out)

    def batch(self, rows: Rows | Sequence[int]) -> Batch:
        """Return the rows in new arrays; IndexError outside 0..len-1."""
        checked, count = self._checked(rows)
        out = {name: np.empty((count, *shape), dtype) for name, (shape, dtype) in self._specs.items()}
        self._fill(checked, out)
        return out

    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """Return one sample: each field without the leading axis, made a tensor by `convert` if it is given.

        For map-style Datasets, which call it once per sample. An array may be a read-only view of the file.
        `convert` is torch.from_numpy, or does as it does; a library that returns tensors needs no call of it.
        New arrays unless overridden; IndexError outside 0..len-1.
        """
        self._check_row(row)
        batch: dict[str, Any] = self.batch(slice(row, row + 1))
        return {name: convert(only_sample(array)) for name, array in batch.items()}

    def array(self, name: str) -> Array | None:
        """Return a field's rows as one read-only array if they are mapped; None unless overridden."""
        return None

    def native(self, rows: Rows) -> Any:
        """Return one batch as the format's own library recommends; new arrays unless overridden.

        Returns a dict of arrays, of which read-only ones are views of a file, or a tensorclass.
        """
        return self.batch(rows)

    def time_decoding(self, timed: TimingWrapper) -> None:
        """Wrap the function that decodes batches, `self._timed(function)`, in `timed`, for a profile.

        This has no effect for formats whose library decodes.
        """
        self._timed = timed

    def placement(self) -> Mapping[str, Placement]:
        """Return the location of each field that is stored as in memory; empty unless overridden.

        May read indices. Fields that are neither here nor in `blocks` can only be read with `read`.
        """
        return {}

    def blocks(self) -> Sequence[Blocks]:
        """Return the locations of fields that are stored encoded, each field once; empty by default."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Release all files and maps. A second call does nothing; a later read is a ValueError."""

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        """Read rows start..stop-1, at least one, into checked `out`; as indices unless overridden."""
        self._read_rows(np.arange(start, stop), out)

    @abstractmethod
    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        """Read checked, non-empty `rows` into checked `out`."""

    def _fill(self, rows: Rows, out: Mapping[str, Array]) -> None:
        if not isinstance(rows, slice):
            if len(rows):
                self._read_rows(rows, out)
        elif rows.start < rows.stop:
            self._read_slice(rows.start, rows.stop, out)

    def _check_row(self, row: int) -> None:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} is not in 0..{len(self) - 1}")

    def _checked(self, rows: Any) -> tuple[Rows, int]:
        """Return the rows as a slice of step 1 or as int64 in range, and their number."""
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step == 1:
                return slice(start, stop), max(0, stop - start)
            rows = np.arange(start, stop, step)
        index = np.asarray(rows)
        if index.ndim != 1 or (index.size and index.dtype.kind not in "iu"):
            raise ValueError(f"rows must be a 1-D array of integers, not {index.dtype} {index.shape}")
        index = index.astype(np.int64, copy=False)
        if index.size and index.view(np.uint64).max() >= len(self):  # negative ones are the largest
            raise IndexError(f"rows {index.min()}..{index.max()} are not all in 0..{len(self) - 1}")
        return index, len(index)

    def _check_out(self, count: int, out: Mapping[str, Array]) -> None:
        for name, array in out.items():
            if self.schema.field(name).is_ragged:  # KeyError lists the known fields
                raise ValueError(f"out[{name!r}]: samples differ in length; read them with batch()")
            shape, dtype = self._specs[name]
            if array.shape != (count, *shape) or array.dtype != dtype:
                raise ValueError(
                    f"out[{name!r}] is {array.dtype} {array.shape}, these rows are {dtype} {(count, *shape)}"
                )
            if not array.flags.c_contiguous:
                raise ValueError(f"out[{name!r}] is not C-contiguous")


# One copy of 12 MiB or more out of a cold map starts at its tail and defeats the kernel's readahead
# (0.8 instead of 2.5 GB/s), so slices are copied in smaller pieces.
PIECE_BYTES = 8 << 20


class MappedReader(Reader):
    """Copies rows out of one mapped array per field.

    Batches are read from plain views, because `np.memmap` spends a third of each index in its own code;
    `sample` indexes the very arrays, as a user's `__getitem__` does, and costs as much.
    """

    def __init__(self, schema: Schema, arrays: Batch, places: Mapping[str, Placement]) -> None:
        super().__init__(schema)
        self._arrays: Batch | None = {name: np.asarray(array) for name, array in arrays.items()}
        self._columns = tuple(arrays.items())
        self._places = places
        self._pieces = {f.name: max(1, PIECE_BYTES // f.sample_bytes) for f in schema.fields}

    def placement(self) -> Mapping[str, Placement]:
        """Return the location of each field in its own file."""
        return self._places

    def array(self, name: str) -> Array | None:
        """Return the map of a field; None for a member of a structured array."""
        array = self._mapped()[name]
        return array if array.flags.c_contiguous else None

    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """Return one sample as read-only views of the map."""
        if self._arrays is None:
            raise ValueError("this reader is closed")
        sample = {}
        for name, array in self._columns:
            sample[name] = convert(array[row, ...])
        return sample

    def close(self) -> None:
        """Drop the maps; they are released with the last view of them."""
        self._arrays, self._columns = None, ()

    def _mapped(self) -> Batch:
        return unclosed(self._arrays)

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        arrays = self._mapped()
        for name, target in out.items():
            array, step = arrays[name], self._pieces[name]
            for low in range(start, stop, step):
                high = min(low + step, stop)
                target[low - start : high - start] = array[low:high]

    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        arrays = self._mapped()
        for name, target in out.items():
            # "clip" never clips here because the rows were checked; with "raise", take copies twice
            arrays[name].take(rows, axis=0, out=target, mode="clip")


class FirstRows(Reader):
    """Reads the first rows of another reader, in that reader's own way, and closes it when it is closed."""

    def __init__(self, whole: Reader, schema: Schema) -> None:
        super().__init__(schema)
        self._whole = whole

    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """Return one sample as the other reader does; IndexError outside 0..len-1."""
        self._check_row(row)
        return self._whole.sample(row, convert)

    def batch(self, rows: Rows | Sequence[int]) -> Batch:
        """Return the rows as the other reader does."""
        return self._whole.batch(self._checked(rows)[0])

    def native(self, rows: Rows) -> Any:
        """Return one batch as the other reader does."""
        return self._whole.native(self._checked(rows)[0])

    def time_decoding(self, timed: TimingWrapper) -> None:
        """Time the decoding of the other reader."""
        self._whole.time_decoding(timed)

    def placement(self) -> Mapping[str, Placement]:
        """Return the locations of all rows: the first rows lie in the same places."""
        return self._whole.placement()

    def blocks(self) -> Sequence[Blocks]:
        """Return the blocks that hold the first rows; of the last one, only these are decoded into `out`."""
        return [self._cut(table) for table in self._whole.blocks()]

    def _cut(self, table: Blocks) -> Blocks:
        ends = np.append(table.first[1:], len(self._whole))
        last = int(np.searchsorted(ends, len(self)))  # the block with the last row
        rows = int(ends[last] - table.first[last])

        def decode(number: int, stored: memoryview, out: Mapping[str, Array]) -> None:
            if number != last:
                table.decode(number, stored, out)
                return
            block = {name: np.empty((rows, *array.shape[1:]), array.dtype) for name, array in out.items()}
            table.decode(number, stored, block)
            for name, array in out.items():
                array[...] = block[name][: len(array)]

        kept = slice(0, last + 1)
        return replace(
            table,
            files=table.files[: int(table.file[kept].max()) + 1],
            first=table.first[kept],
            file=table.file[kept],
            offset=table.offset[kept],
            stored=table.stored[kept],
            decode=decode,
        )

    def close(self) -> None:
        """Close the other reader."""
        self._whole.close()

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        self._whole._read_slice(start, stop, out)

    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        self._whole._read_rows(rows, out)
