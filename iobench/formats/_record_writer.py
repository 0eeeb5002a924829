"""Writing samples as records: whole batches at once, as tables of bytes with a row per sample."""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from iobench.formats._schema import Array, Batch, Field, Schema, raw_bytes

PIECE_BYTES = 4 << 20  # of records that are made at once


@dataclass(frozen=True)
class RecordTemplate:
    """How one sample is stored: bytes that all samples share, and between them those of the fields.

    `pattern`: the record with zeros in place of the fields; `places`: where each field begins in it.
    """

    pattern: bytes
    places: Mapping[str, int]

    @classmethod
    def of(cls, parts: Sequence[bytes | Field]) -> RecordTemplate:
        """The record that is made of these, one after the other."""
        places, pattern = {}, bytearray()
        for part in parts:
            if isinstance(part, Field):
                places[part.name] = len(pattern)
                pattern += bytes(part.sample_bytes)
            else:
                pattern += part
        return cls(bytes(pattern), places)

    def table(self, batch: Batch) -> Array:
        """The records of a batch, uint8 (samples, bytes of a record)."""
        count = len(next(iter(batch.values())))
        table = np.empty((count, len(self.pattern)), np.uint8)
        table[:] = np.frombuffer(self.pattern, np.uint8)
        for name, place in self.places.items():
            raw = np.frombuffer(raw_bytes(batch[name]), np.uint8).reshape(count, -1)
            table[:, place : place + raw.shape[1]] = raw
        return table


class ShardWriter(ABC):
    """Writes samples into files of `shard_rows` samples each, the last one of the rest."""

    def __init__(self, schema: Schema, record: RecordTemplate, shard_rows: int) -> None:
        self.schema, self.record = schema, record
        self.shard_rows = min(shard_rows, schema.samples)

    @property
    def shards(self) -> int:
        """How many files there will be."""
        return -(-self.schema.samples // self.shard_rows)

    def rows_of(self, number: int) -> int:
        """Samples in a file."""
        return min(self.shard_rows, self.schema.samples - number * self.shard_rows)

    @abstractmethod
    def path_of(self, number: int) -> Path:
        """Where a file is written."""

    def begin(self, number: int) -> bytes:
        """What a file begins with; nothing unless overridden."""
        return b""

    def end(self, number: int) -> bytes:
        """What a file ends with; nothing unless overridden."""
        return b""

    def stamp(self, table: Array, first: int) -> None:
        """Put into records, of which row 0 is sample `first`, what differs from sample to sample."""
        return

    def stored(self, table: Array, first: int) -> bytes | memoryview:
        """What is written of stamped records; they themselves unless overridden."""
        return raw_bytes(table)

    def write(self, batches: Iterable[Batch]) -> None:
        """Write every file."""
        pieces = self._pieces(batches)
        for number, inside in itertools.groupby(pieces, lambda piece: piece[0] // self.shard_rows):
            with open(self.path_of(number), "xb") as file:
                file.write(self.begin(number))
                for first, batch in inside:
                    table = self.record.table(batch)
                    self.stamp(table, first)
                    file.write(self.stored(table, first))
                file.write(self.end(number))

    def _pieces(self, batches: Iterable[Batch]) -> Iterator[tuple[int, Batch]]:
        """Parts of the batches, none over the end of a file, each with the number of its first sample."""
        start, most = 0, max(1, PIECE_BYTES // len(self.record.pattern))
        for batch in batches:
            count, low = len(next(iter(batch.values()))), 0
            while low < count:
                inside = self.shard_rows - (start + low) % self.shard_rows
                high = min(count, low + most, low + inside)
                yield start + low, {name: array[low:high] for name, array in batch.items()}
                low = high
            start += count


def write_at(descriptor: int, data: memoryview, offset: int) -> None:
    """Write all of it, from that byte of a file on."""
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def rows_within(shard_bytes: int, record_bytes: int) -> int:
    """How many records a file of at most so many bytes holds, at least one."""
    return max(1, shard_bytes // record_bytes)
