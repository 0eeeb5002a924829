"""Formats that store each field as one array, and fields that differ in length as values and offsets.

A ragged field `tokens` is two arrays: `tokens`, its elements end to end, and `tokens_offsets`, the int64
index at which each sample begins and the last one ends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from iobench.base.text import numbered
from iobench.formats.format import Format
from iobench.formats.placement import AdjacentSpans, Blocks, Placement, Spans, Strided
from iobench.formats.ragged import Ragged, check_offsets, offsets_of
from iobench.formats.reader import Convert, Reader, Rows, TimingWrapper, identity
from iobench.formats.schema import MAX_NAME_BYTES, Array, Batch, Field, Schema

OFFSETS = "_offsets"  # after the name of a ragged field


@dataclass(frozen=True)
class StoredArray:
    """One array of an artifact: `length` rows of `row`, a field of fixed shape."""

    row: Field
    length: int

    @property
    def name(self) -> str:
        """Name of the array, which is a field's name."""
        return self.row.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        return (self.length, *self.row.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.length * self.row.sample_bytes

    @property
    def schema(self) -> Schema:
        """Schema whose samples are the rows of the array."""
        return Schema(self.length, (self.row,))


class ArrayFormat(Format):
    """Base class of formats that store arrays, of which each has a length of its own."""

    holds_ragged: ClassVar[bool] = True

    @abstractmethod
    def write_arrays(self, path: Path, arrays: Collection[StoredArray], batches: Iterable[Batch]) -> None:
        """Write the arrays into the new directory `path`.

        A batch holds the next rows of every array, C-contiguous; their numbers differ.
        """

    @abstractmethod
    def open_arrays(self, path: Path, schema: Schema, random: bool = False) -> Reader:
        """Return a reader of some arrays, of one length.

        Raises
        ------
        CorruptArtifact
            The files do not match `schema`.
        """

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write an array per field, and the offsets of ragged ones."""
        self.write_arrays(path, stored_arrays(schema), _stored_batches(schema, batches))

    def open(self, path: Path, schema: Schema, random: bool = False) -> Reader:
        """Check each array's shape and dtype, and return a reader."""
        if not schema.ragged:
            return self.open_arrays(path, schema, random)
        arrays = {array.name: array for array in stored_arrays(schema)}
        with ExitStack() as stack:

            def reader(part: Schema) -> Reader:
                return stack.enter_context(self.open_arrays(path, part, random))

            fixed = schema.fixed
            samples, columns = reader(fixed) if fixed.fields else None, {}
            for name, own in offsets_names(schema).items():
                with reader(arrays[own].schema) as stored:
                    mapped = stored.array(own)
                    offsets = stored.batch(slice(None))[own] if mapped is None else mapped
                columns[name] = StoredColumn(reader(arrays[name].schema), offsets, path)
            stack.pop_all()
        return RaggedReader(schema, samples, columns)


def stored_arrays(schema: Schema) -> list[StoredArray]:
    """Return the arrays that hold samples of this schema."""
    arrays = [StoredArray(replace(f, shape=f.inner), schema.rows(f)) for f in schema.fields]
    names = offsets_names(schema).values()
    return arrays + [StoredArray(Field(name, (), "int64"), schema.samples + 1) for name in names]


def offsets_names(schema: Schema) -> dict[str, str]:
    """Return the name of the array of offsets of each ragged field, which no other array has."""
    taken, names = {field.name for field in schema.fields}, {}
    for field in schema.ragged:
        short = len(field.name.encode()) + len(OFFSETS) + 4 <= MAX_NAME_BYTES
        stem = f"{field.name if short else 'ragged'}{OFFSETS}"
        names[field.name] = next(one for one in numbered(stem) if one not in taken)
        taken.add(names[field.name])
    return names


def _stored_batches(schema: Schema, batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield batches of the stored arrays: of a ragged field its values, and the offsets in all values."""
    ends = {name: (own, np.zeros(1, np.int64)) for name, own in offsets_names(schema).items()}
    for number, batch in enumerate(batches):
        arrays: dict[str, Any] = dict(batch)
        for name, (own, end) in ends.items():
            ragged: Ragged = arrays[name]
            offsets = end + ragged.offsets
            arrays |= {name: ragged.values, own: offsets[min(number, 1) :]}  # only the first has a 0
            ends[name] = own, offsets[-1:]
        yield arrays


class RaggedColumn(ABC):
    """A field whose samples differ in length."""

    @abstractmethod
    def sample(self, row: int) -> Array:
        """Return the elements of a sample: a view of a map, or a new array."""

    @abstractmethod
    def batch(self, rows: Rows) -> Ragged:
        """Return checked rows in new arrays."""

    def spans(self) -> Spans | None:
        """Return the location of the samples, if their elements are adjacent in one file; None by default."""
        return None

    def time_decoding(self, timed: TimingWrapper) -> None:  # noqa: B027 - most decode nothing
        """Time the decoding, as `Reader.time_decoding`; none by default."""

    @abstractmethod
    def close(self) -> None:
        """Release all files; a later read is a ValueError."""


@dataclass(frozen=True)
class StoredColumn(RaggedColumn):
    """A reader of the elements of all samples, and where each sample begins.

    CorruptArtifact if the offsets do not rise from 0 to the number of elements.
    """

    values: Reader
    offsets: npt.NDArray[np.int64]
    path: Path

    def __post_init__(self) -> None:
        check_offsets(self.offsets, len(self.values), self.name, self.path)

    @property
    def name(self) -> str:
        """The field's name."""
        return self.values.schema.fields[0].name

    def sample(self, row: int) -> Array:
        """Return the elements of a sample: a view of a map, or a new array."""
        begin, end, mapped = int(self.offsets[row]), int(self.offsets[row + 1]), self.values.array(self.name)
        return self.values.batch(slice(begin, end))[self.name] if mapped is None else mapped[begin:end]

    def batch(self, rows: Rows) -> Ragged:
        """Return checked rows in new arrays."""
        mapped = self.values.array(self.name)
        if isinstance(rows, slice):
            offsets = self.offsets[rows.start : max(rows.start, rows.stop) + 1]
            elements = slice(int(offsets[0]), int(offsets[-1]))
            return Ragged(self.values.batch(elements)[self.name], offsets - offsets[0])
        if mapped is not None:
            return Ragged(mapped, self.offsets)[rows]
        return self._gathered(rows)

    def spans(self) -> Spans | None:
        """Return the location of the samples, if their elements are adjacent in one file."""
        place = self.values.placement().get(self.name)
        if not isinstance(place, Strided) or place.stride != self.values.schema.sample_bytes:
            return None
        return AdjacentSpans(place.files, place.offset, place.stride, self.offsets)

    def time_decoding(self, timed: TimingWrapper) -> None:
        """Time the decoding of the elements."""
        self.values.time_decoding(timed)

    def close(self) -> None:
        """Close the reader of the elements."""
        self.values.close()

    def _gathered(self, rows: npt.NDArray[np.int64]) -> Ragged:
        """Read samples one by one, in the order in which they are stored."""
        begins, ends = self.offsets[rows], self.offsets[rows + 1]
        offsets = offsets_of(ends - begins)
        field = self.values.schema.fields[0]
        values = np.empty((int(offsets[-1]), *field.shape), field.dtype)
        for slot in np.argsort(begins, kind="stable").tolist():
            target = values[offsets[slot] : offsets[slot + 1]]
            self.values.read(slice(int(begins[slot]), int(ends[slot])), {self.name: target})
        return Ragged(values, offsets)


class RaggedReader(Reader):
    """Reader of ragged fields, and of fixed ones through another reader of the same artifact."""

    def __init__(self, schema: Schema, fixed: Reader | None, columns: Mapping[str, RaggedColumn]) -> None:
        super().__init__(schema)
        self._fixed, self._columns = fixed, columns
        self._parts: list[Reader | RaggedColumn] = [*([fixed] if fixed else []), *columns.values()]

    def batch(self, rows: Rows | Sequence[int]) -> Batch:
        """Return the rows in new arrays, ragged fields as `Ragged`; IndexError outside 0..len-1."""
        checked, _ = self._checked(rows)
        batch: dict[str, Any] = self._fixed.batch(checked) if self._fixed else {}
        for name, column in self._columns.items():
            batch[name] = column.batch(checked)
        return self._in_order(batch)

    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """Return one sample; IndexError outside 0..len-1."""
        self._check_row(row)
        sample = self._fixed.sample(row, convert) if self._fixed else {}
        for name, column in self._columns.items():
            sample[name] = convert(column.sample(row))
        return self._in_order(sample)

    def time_decoding(self, timed: TimingWrapper) -> None:
        """Time the decoding of all parts."""
        for part in self._parts:
            part.time_decoding(timed)

    def placement(self) -> Mapping[str, Placement]:
        """Return the locations of the fixed fields, and of the ragged ones that lie in one piece."""
        fixed = self._fixed.placement() if self._fixed else {}
        spans = {name: column.spans() for name, column in self._columns.items()}
        return {**fixed, **{name: place for name, place in spans.items() if place is not None}}

    def blocks(self) -> Sequence[Blocks]:
        """Return the blocks of the fixed fields."""
        return self._fixed.blocks() if self._fixed else ()

    def close(self) -> None:
        """Close the readers of all parts."""
        for part in self._parts:
            part.close()

    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        assert self._fixed is not None  # `out` holds fixed fields only
        self._fixed.read(rows, out)

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        assert self._fixed is not None
        self._fixed.read(slice(start, stop), out)

    def _in_order(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {field.name: fields[field.name] for field in self.schema.fields}
