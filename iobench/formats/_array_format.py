"""Formats that store each field as one array, and fields that differ in length as values and offsets.

A ragged field `tokens` is two arrays: `tokens`, its elements end to end, and `tokens_offsets`, the int64
index at which each sample begins and the last one ends.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from iobench.formats._format import Format
from iobench.formats._ragged import Ragged
from iobench.formats._ragged_reader import RaggedReader, StoredColumn
from iobench.formats._reader import Reader
from iobench.formats._schema import MAX_NAME_BYTES, Batch, Field, Schema

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
    def open_arrays(
        self, path: Path, schema: Schema, random: bool = False, others: Collection[str] = ()
    ) -> Reader:
        """Return a reader of arrays of one length; the artifact also holds the arrays named `others`.

        Raises
        ------
        CorruptArtifact
            The files do not match `schema`, or hold other arrays than these.
        """

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write an array per field, and the offsets of ragged ones."""
        self.write_arrays(path, stored_arrays(schema), _stored_batches(schema, batches))

    def open(self, path: Path, schema: Schema, random: bool = False) -> Reader:
        """Check each array's shape and dtype, and return a reader."""
        if not schema.ragged:
            return self.open_arrays(path, schema, random)
        arrays, opened = {array.name: array for array in stored_arrays(schema)}, list[Reader]()

        def reader(part: Schema) -> Reader:
            others = set(arrays).difference(field.name for field in part.fields)
            opened.append(self.open_arrays(path, part, random, others))
            return opened[-1]

        try:
            fixed = schema.fixed
            samples, columns = reader(fixed) if fixed.fields else None, {}
            for name, own in offsets_names(schema).items():
                with reader(arrays[own].schema) as stored:
                    mapped = stored.array(own)
                    offsets = stored.batch(slice(None))[own] if mapped is None else mapped
                columns[name] = StoredColumn(reader(arrays[name].schema), offsets, path)
            return RaggedReader(schema, samples, columns)
        except BaseException:
            for one in opened:
                one.close()
            raise


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
        numbered = (f"{stem}_{number}" for number in itertools.count(2))
        names[field.name] = next(one for one in itertools.chain([stem], numbered) if one not in taken)
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
