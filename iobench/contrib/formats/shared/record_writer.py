"""Writer of samples as records: whole batches as byte tables with a row per sample."""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from iobench.formats import Array, Batch, Field, Index, Ragged, Schema, raw_bytes

PIECE_BYTES = 4 << 20  # of records that are assembled at once


@dataclass(frozen=True)
class RecordTemplate:
    """Layout of one sample's record: bytes that all samples share, and the fields between them."""

    pattern: bytes  # the record with zeros in place of the fields
    places: Mapping[str, int]  # byte offset of each field in the record

    @classmethod
    def of(cls, parts: Sequence[bytes | Field]) -> RecordTemplate:
        """Return the template of a record that consists of these parts in order."""
        places, pattern = {}, bytearray()
        for part in parts:
            if isinstance(part, Field):
                places[part.name] = len(pattern)
                pattern += bytes(part.sample_bytes)
            else:
                pattern += part
        return cls(bytes(pattern), places)

    def table(self, batch: Batch) -> Array:
        """Return the records of a batch, uint8 of shape (samples, record bytes)."""
        count = len(next(iter(batch.values())))
        table = np.empty((count, len(self.pattern)), np.uint8)
        table[:] = np.frombuffer(self.pattern, np.uint8)
        for name, place in self.places.items():
            raw = np.frombuffer(raw_bytes(batch[name]), np.uint8).reshape(count, -1)
            table[:, place : place + raw.shape[1]] = raw
        return table


class ShardWriter(ABC):
    """Writes samples into files of `shard_rows` samples each; the last file holds the rest."""

    def __init__(self, schema: Schema, record: RecordTemplate, shard_rows: int) -> None:
        self.schema, self.record = schema, record
        self.shard_rows = min(shard_rows, schema.samples)

    @property
    def shards(self) -> int:
        """Number of files."""
        return -(-self.schema.samples // self.shard_rows)

    def rows_of(self, number: int) -> int:
        """Return the number of samples in a file."""
        return min(self.shard_rows, self.schema.samples - number * self.shard_rows)

    @abstractmethod
    def path_of(self, number: int) -> Path:
        """Return the path of a file."""

    def begin(self, number: int) -> bytes:
        """Return the bytes before a file's records; empty unless overridden."""
        return b""

    def end(self, number: int) -> bytes:
        """Return the bytes after a file's records; empty unless overridden."""
        return b""

    def stamp(self, table: Array, first: int) -> None:
        """Fill in what differs between records, such as checksums; row 0 is sample `first`."""
        return

    def stored(self, table: Array, first: int) -> bytes | memoryview:
        """Return the bytes to write for stamped records; the records themselves unless overridden."""
        return raw_bytes(table)

    def write(self, batches: Iterable[Batch]) -> None:
        """Write all files."""
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
        """Yield pieces of the batches with their first sample; no piece crosses the end of a file."""
        start, most = 0, max(1, PIECE_BYTES // len(self.record.pattern))
        for batch in batches:
            count, low = len(next(iter(batch.values()))), 0
            while low < count:
                inside = self.shard_rows - (start + low) % self.shard_rows
                high = min(count, low + most, low + inside)
                yield start + low, {name: array[low:high] for name, array in batch.items()}
                low = high
            start += count


def sample_bytes(batch: Mapping[str, Any], field: Field) -> tuple[memoryview, Index]:
    """Return the memory of a field of a batch, and the byte offset of each sample and of the end."""
    one = batch[field.name]
    ragged = one if isinstance(one, Ragged) else Ragged(one, np.arange(len(one) + 1))
    return raw_bytes(np.ascontiguousarray(ragged.values)), ragged.offsets * field.sample_bytes


def filled(records: Iterable[bytes], most: int, extra: int = 0) -> Iterator[list[bytes]]:
    """Yield records of different lengths in groups of at most `most` bytes each, with `extra` per record.

    A record that is longer comes alone. A group is in memory until it is full.
    """
    held: list[bytes] = []
    size = 0
    for record in records:
        if held and size + len(record) + extra > most:
            yield held
            held, size = [], 0
        held.append(record)
        size += len(record) + extra
    yield held


def write_at(descriptor: int, data: memoryview, offset: int) -> None:
    """Write all of `data` to a file, from byte `offset`."""
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def rows_within(shard_bytes: int, record_bytes: int) -> int:
    """Return the number of records that fit in a file of `shard_bytes`, at least one."""
    return max(1, shard_bytes // record_bytes)
