"""Writer of samples as records: whole batches as byte tables with a row per sample, or one by one.

A schema file describes artifacts whose data files hold raw bytes only.
"""

from __future__ import annotations

import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from iobench.base.errors import UnsupportedSchema, corrupt, expecting
from iobench.base.files import regular
from iobench.formats import Array, Batch, BatchStream, Field, Index, Ragged, Schema, raw_bytes

PIECE_BYTES = 4 << 20  # of records that are assembled at once
SCHEMA_FILE = "schema.json"


class ShardWriter(ABC):
    """Writes samples into files of at most `shard_bytes`; one that is larger has a file of its own.

    `parts` are those of a record of samples of one size. Of the bytes of a file, `head` come before its
    records, and `extra` are added for each.
    """

    def __init__(
        self, schema: Schema, parts: Sequence[bytes | Field], shard_bytes: int, head: int = 0, extra: int = 0
    ) -> None:
        self.schema, self._places, pattern = schema, dict[str, int](), bytearray()
        for part in parts:
            if isinstance(part, Field):
                self._places[part.name] = len(pattern)
            pattern += bytes(part.sample_bytes) if isinstance(part, Field) else part
        self.record = bytes(pattern)  # of a sample of one size, with zeros in place of the fields
        self._room, self._extra = shard_bytes - head, extra
        self._rows = min(max(1, self._room // (len(self.record) + extra)), schema.samples)

    @property
    def shards(self) -> int:
        """Number of files of samples of one size."""
        return -(-self.schema.samples // self._rows)

    @abstractmethod
    def path_of(self, number: int) -> Path:
        """Return the path of a file."""

    def begin(self, sizes: Index) -> bytes:
        """Return the bytes before a file's records of these sizes; empty unless overridden."""
        return b""

    def end(self) -> bytes:
        """Return the bytes after a file's records; empty unless overridden."""
        return b""

    def stored(self, table: Array, first: int) -> bytes | memoryview:
        """Return the bytes of records, after filling in what differs between them, such as checksums.

        Row 0 is sample `first`. The table itself unless overridden.
        """
        return raw_bytes(table)

    @abstractmethod
    def records(self, batches: Iterable[Batch]) -> Iterator[bytes]:
        """Yield the record of each sample, where these differ in length."""

    def write(self, batches: Iterable[Batch]) -> list[int]:
        """Write all files; return the number of samples in each."""
        if self.schema.ragged:
            return self._write_groups(self.records(batches))
        counts, stream, row = list[int](), BatchStream(batches), 0
        width = len(self.record)
        most = max(1, PIECE_BYTES // width)
        for first in range(0, self.schema.samples, self._rows):
            counts.append(min(self._rows, self.schema.samples - first))
            with open(self.path_of(len(counts) - 1), "xb") as file:
                file.write(self.begin(np.full(counts[-1], width)))
                for batch in stream.take(counts[-1]):
                    for low in range(0, len(next(iter(batch.values()))), most):
                        table = self._table({name: array[low : low + most] for name, array in batch.items()})
                        file.write(self.stored(table, row))
                        row += len(table)
                file.write(self.end())
        return counts

    def _table(self, batch: Batch) -> Array:
        """Return the records of samples of one size, uint8 of shape (samples, record bytes)."""
        count = len(next(iter(batch.values())))
        table = np.empty((count, len(self.record)), np.uint8)
        table[:] = np.frombuffer(self.record, np.uint8)
        for name, place in self._places.items():
            raw = np.frombuffer(raw_bytes(batch[name]), np.uint8).reshape(count, -1)
            table[:, place : place + raw.shape[1]] = raw
        return table

    def _write_groups(self, records: Iterable[bytes]) -> list[int]:
        """Write records that differ in length; those of a file are in memory until it is full."""
        counts, held, size = list[int](), list[bytes](), 0
        for record in itertools.chain(records, [None]):
            if record is None or (held and size + len(record) + self._extra > self._room):
                with open(self.path_of(len(counts)), "xb") as file:
                    file.write(self.begin(np.array(list(map(len, held)), np.int64)))
                    file.writelines([*held, self.end()])
                counts.append(len(held))
                held, size = [], 0
            if record is not None:
                held.append(record)
                size += len(record) + self._extra
        return counts


def sample_bytes(batch: Mapping[str, Any], field: Field) -> tuple[memoryview, Index]:
    """Return the memory of a field of a batch, and the byte offset of each sample and of the end."""
    one = batch[field.name]
    ragged = one if isinstance(one, Ragged) else Ragged(one, np.arange(len(one) + 1))
    return raw_bytes(np.ascontiguousarray(ragged.values)), ragged.offsets * field.sample_bytes


def sample_parts(batch: Mapping[str, Any], fields: Sequence[Field]) -> Iterator[list[memoryview]]:
    """Yield the memory of each sample's fields."""
    columns = [(memory, edges.tolist()) for memory, edges in (sample_bytes(batch, one) for one in fields)]
    for row in range(len(columns[0][1]) - 1):
        yield [memory[edges[row] : edges[row + 1]] for memory, edges in columns]


def shards_bound(schema: Schema, each: int, shard_bytes: int, head: int = 0) -> int:
    """Return an upper bound of the bytes of shards, of `each` more per sample and `head` more per shard."""
    records = schema.logical_bytes + schema.samples * each
    shards = min(schema.samples, 1 + 2 * records // max(1, shard_bytes - head))
    return records + shards * (4096 + 4 * head) + (1 << 20)


def refuse_large(what: str, size: int, most: int, limit: str = "", hint: str | None = None) -> None:
    """Raise UnsupportedSchema (``sample-too-large``) if a sample takes more bytes than its `limit`."""
    if size > most:
        expected = f"at most {most:,} bytes{limit and ', '}{limit}"
        raise UnsupportedSchema(
            what, kind="sample-too-large", expected=expected, found=f"{size:,}", hint=hint
        )


def describe(path: Path, schema: Schema) -> None:
    """Write the schema into a folder: samples, and each field's name, shape and dtype."""
    (path / SCHEMA_FILE).write_text(_text(schema))


def check_described(path: Path, schema: Schema) -> None:
    """Raise CorruptArtifact if the schema in a folder differs from `schema`."""
    file = path / SCHEMA_FILE
    with expecting(file, "the schema", OSError):
        content = regular(file).read_bytes()
    if content != _text(schema).encode():
        raise corrupt(file, "this dataset's schema", "another")


def _text(schema: Schema) -> str:
    plain = {"samples": schema.samples, "fields": [asdict(field) for field in schema.fields]}
    return json.dumps(plain) + "\n"
