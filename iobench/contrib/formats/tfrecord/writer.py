"""Writing of TFRecord files: one bytes value per field."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from iobench.base.errors import UnsupportedSchema
from iobench.contrib.formats.shared.record_writer import (
    RecordTemplate,
    ShardWriter,
    filled,
    rows_within,
    sample_bytes,
)
from iobench.contrib.formats.tfrecord import example
from iobench.contrib.formats.tfrecord.crc32c import masked, masked_rows
from iobench.contrib.formats.tfrecord.records import CRC, HEAD, LENGTH, TAIL
from iobench.formats import Array, Batch, Schema, raw_bytes

PREFIX = "iobench-"  # of files written by iobench, which come with a schema
MOST_BYTES = (1 << 31) - 1  # of a protocol buffer
HEADS = 64  # bytes that surround a value and its name, at most


def write_files(path: Path, schema: Schema, batches: Iterable[Batch], shard_bytes: int) -> None:
    """Write the files of a folder."""
    if schema.ragged:
        _write_ragged(path, schema, batches, shard_bytes)
    else:
        _TFRecordWriter(path, schema, shard_bytes).write(batches)


def most_bytes(schema: Schema, shard_bytes: int) -> int:
    """Return a limit of the bytes of all files and the schema."""
    if schema.ragged:
        each = HEAD + TAIL + sum(HEADS + len(field.name.encode()) for field in schema.fields)
        records = schema.logical_bytes + schema.samples * each
        files = min(schema.samples, 1 + 2 * records // shard_bytes)
    else:
        record = len(_TFRecordWriter(Path(), schema, shard_bytes).record.pattern)
        records, files = schema.samples * record, -(-schema.samples // rows_within(shard_bytes, record))
    return records + files * 4096 + (1 << 20)


class _TFRecordWriter(ShardWriter):
    """Writer of records that differ only in the fields' bytes and the checksum."""

    def __init__(self, path: Path, schema: Schema, shard_bytes: int) -> None:
        self._path = path
        parts = example.encoded(schema.fields, [field.sample_bytes for field in schema.fields])
        size = sum(len(p) if isinstance(p, bytes) else p.sample_bytes for p in parts)
        record = RecordTemplate.of([_head(size), *parts, bytes(TAIL)])
        super().__init__(schema, record, rows_within(shard_bytes, len(record.pattern)))

    def path_of(self, number: int) -> Path:
        return self._path / f"{PREFIX}{number:05d}-of-{self.shards:05d}.tfrecord"

    def stamp(self, table: Array, first: int) -> None:
        from crc32c import crc32c

        data, width = raw_bytes(table), table.shape[1]
        for row in range(len(table)):
            end = (row + 1) * width - TAIL
            CRC.pack_into(data, end, masked(crc32c(data[row * width + HEAD : end])))


def _write_ragged(path: Path, schema: Schema, batches: Iterable[Batch], shard_bytes: int) -> None:
    """Write samples that differ in length; the number of files is not known before, so no name holds it."""
    records = itertools.chain.from_iterable(_records(schema, batch) for batch in batches)
    for number, held in enumerate(filled(records, shard_bytes)):
        with open(path / f"{PREFIX}{number:05d}.tfrecord", "xb") as file:
            file.writelines(held)


def _records(schema: Schema, batch: Batch) -> Iterator[bytes]:
    """Yield the record of each sample of a batch."""
    from crc32c import crc32c

    columns = {field.name: sample_bytes(batch, field) for field in schema.fields}
    edges = np.stack([ends for _, ends in columns.values()], 1)
    for low, high in itertools.pairwise(edges.tolist()):
        sizes = [end - begin for begin, end in zip(low, high, strict=True)]
        values = {
            name: memory[begin:end]
            for (name, (memory, _)), begin, end in zip(columns.items(), low, high, strict=True)
        }
        parts = example.encoded(schema.fields, sizes)
        data = b"".join(part if isinstance(part, bytes) else values[part.name] for part in parts)
        if len(data) > MOST_BYTES:
            raise UnsupportedSchema(
                "format tfrecord cannot hold a sample",
                kind="sample-too-large",
                expected=f"at most {MOST_BYTES:,} bytes, the limit of a protocol buffer",
                found=f"{len(data):,}",
            )
        yield b"".join([_head(len(data)), data, CRC.pack(masked(crc32c(data)))])


def _head(size: int) -> bytes:
    """Return the length of a record's data, and its checksum."""
    length = LENGTH.pack(size)
    return length + masked_rows(np.frombuffer(length, np.uint8)[None]).tobytes()
