"""Writing of RecordIO records."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from iobench.base.errors import UnsupportedSchema
from iobench.contrib.formats.recordio.records import (
    FIRST,
    HEAD,
    IR_HEADER,
    LAST,
    LENGTH_BITS,
    MAGIC,
    MIDDLE,
    MOST_BYTES,
    WHOLE,
    WORD,
)
from iobench.contrib.formats.shared.record_writer import RecordTemplate, ShardWriter
from iobench.formats import Array, Batch, Schema, raw_bytes
from iobench.formats.payloads import LENGTH, payloads

ID_AT = 8  # in an IRHeader


def write_records(file: Path, schema: Schema, batches: Iterable[Batch]) -> array[int]:
    """Write one record per sample; return the offset of each."""
    if schema.ragged:
        return _write_ragged(file, schema, batches)
    writer = _RecordIOWriter(file, schema)
    writer.write(batches)
    return writer.begins


def most_record_bytes(schema: Schema) -> int:
    """Return a limit of the bytes of all records, unless they contain the magic word."""
    lengths = LENGTH.itemsize * len(schema.ragged)
    each = HEAD.size + IR_HEADER.size + lengths + WORD - 1
    return schema.logical_bytes + schema.samples * each


def _write_ragged(file: Path, schema: Schema, batches: Iterable[Batch]) -> array[int]:
    """Write samples that differ in length as payloads, one by one."""
    begins = array("q")
    with open(file, "xb") as opened:
        for batch in batches:
            for payload in payloads(schema, batch):
                row = len(begins)
                begins.append(opened.tell())
                opened.write(_record(IR_HEADER.pack(0, 0.0, row, 0) + payload, row))
    return begins


def _record(data: bytes, row: int) -> bytes:
    """Return a record of these data; UnsupportedSchema if they are too large."""
    if len(data) > MOST_BYTES:
        raise UnsupportedSchema(
            f"format recordio cannot hold sample {row}",
            kind="sample-too-large",
            expected=f"at most {MOST_BYTES:,} bytes, the limit of a record",
            found=f"{len(data):,}",
        )
    return _in_parts(data)


class _RecordIOWriter(ShardWriter):
    """Writer of one file of equally large records, except those that contain the magic word."""

    def __init__(self, file: Path, schema: Schema) -> None:
        self._file = file
        self._size = IR_HEADER.size + schema.sample_bytes
        self._end = 0
        self.begins = array("q")
        head, padding = HEAD.pack(MAGIC, self._size) + bytes(IR_HEADER.size), bytes(-self._size % WORD)
        super().__init__(schema, RecordTemplate.of([head, *schema.fields, padding]), schema.samples)

    def path_of(self, number: int) -> Path:
        return self._file

    def stamp(self, table: Array, first: int) -> None:
        at = HEAD.size + ID_AT
        rows = np.arange(first, first + len(table), dtype="<u8")
        table[:, at : at + 8] = rows.view(np.uint8).reshape(-1, 8)

    def stored(self, table: Array, first: int) -> bytes | memoryview:
        """Return the records, of which those that contain the magic word are split into parts."""
        words = table.view("<u4")[:, HEAD.size // WORD : (HEAD.size + self._size) // WORD]
        held = (words == MAGIC).any(1)
        records: list[bytes | memoryview] = [raw_bytes(table)] if not held.any() else []
        sizes = np.full(len(table), table.shape[1])
        if held.any():
            records = [row.data for row in table]
            for row in np.flatnonzero(held).tolist():
                records[row] = _in_parts(table[row, HEAD.size : HEAD.size + self._size].tobytes())
                sizes[row] = len(records[row])
        ends = self._end + np.cumsum(sizes)
        self.begins.frombytes((ends - sizes).astype(np.int64).tobytes())
        self._end = int(ends[-1])
        return records[0] if len(records) == 1 else b"".join(records)


def _in_parts(data: bytes) -> bytes:
    """Return a record of these data, split at each magic word at a word boundary, as MXNet does."""
    words = np.frombuffer(data, "<u4", len(data) // WORD)
    places = (np.flatnonzero(words == MAGIC) * WORD).tolist()
    parts = []
    edges = zip([0, *(place + WORD for place in places)], [*places, len(data)], strict=True)
    for number, (low, high) in enumerate(edges):
        kind = FIRST if number == 0 else LAST if number == len(places) else MIDDLE
        part, flag = data[low:high], kind if places else WHOLE
        parts.append(HEAD.pack(MAGIC, flag << LENGTH_BITS | len(part)) + part + bytes(-len(part) % WORD))
    return b"".join(parts)
