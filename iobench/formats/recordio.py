"""RecordIO: MXNet's `data.rec` with `data.idx`, written and read without MXNet.

A record: a magic word, a word of 3 bits of continuation and 29 of length, the data, zeros to a whole
word. Where data hold the magic word at a whole word, the record is continued after it in another
(1 the first part, 2 those in between, 3 the last), so that a reader may look for the magic word.
The index has a line per record, `number<tab>offset`. The data, as `mxnet.recordio.pack` has them: an
IRHeader (flag u32, label f32, id u64, id2 u64), `flag` more labels, and then what is packed: here the
fields of the sample one after the other, in the order of `schema.json`.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from iobench.base.errors import (
    CorruptArtifact,
)
from iobench.formats._format import Format
from iobench.formats._placed_reader import FieldLocations, Maps, PlacedReader
from iobench.formats._reader import LoadOrBuild, build_now
from iobench.formats._record_writer import RecordTemplate, ShardWriter
from iobench.formats._recordio_records import (
    FIRST,
    HEAD,
    ID_AT,
    IR_HEADER,
    LAST,
    LENGTH_BITS,
    MAGIC,
    MIDDLE,
    MOST_BYTES,
    WORD,
    RecordIORecords,
    index_of,
)
from iobench.formats._schema import DTYPES, Array, Batch, Field, Schema, raw_bytes
from iobench.formats._schema_file import check_described, describe

DATA_FILE, INDEX_FILE = "data.rec", "data.idx"


@dataclass(frozen=True)
class RecordIO(Format):
    """One .rec file with an index, as MXNet reads them."""

    name: ClassVar[str] = "recordio"
    summary: ClassVar[str] = "MXNet's .rec with .idx, one record per sample, without MXNet"
    library: ClassVar[str] = "numpy"
    dtypes: ClassVar[frozenset[str]] = frozenset(DTYPES)

    def check_schema(self, schema: Schema) -> None:
        """As any format, and refuse samples that are too large for a record."""
        super().check_schema(schema)
        self._refuse_large(schema, IR_HEADER.size + schema.sample_bytes, MOST_BYTES, "a record")

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write the records, the index and the schema."""
        path.mkdir()
        writer = _RecordIOWriter(path, schema)
        writer.write(batches)
        (path / INDEX_FILE).write_text(index_of(np.frombuffer(writer.begins, np.int64)))
        describe(path, schema)

    def open(self, path: Path, schema: Schema, random: bool = False) -> PlacedReader:
        """A reader; the records are walked when rows are first asked for."""
        if not path.is_dir():
            maps = Maps([path])
            return PlacedReader(
                schema, maps, lambda load_or_build: RecordIORecords(maps, load_or_build).found(schema)
            )
        check_described(path, schema)
        maps = Maps([path / DATA_FILE, path / INDEX_FILE])
        return PlacedReader(
            schema, maps, lambda load_or_build: _written_locations(maps, schema, load_or_build)
        )

    def size_bound(self, schema: Schema) -> int:
        """Records and lines of the index."""
        record = len(_RecordIOWriter(Path(), schema).record.pattern)
        lines = 2 + len(str(schema.samples)) + len(str(schema.samples * record))
        return schema.samples * (record + lines) + (1 << 20)

    def sniff(self, path: Path) -> bool:
        """A file whose name ends in .rec and that begins with the magic word."""
        if path.suffix != ".rec" or not path.is_file():
            return False
        with open(path, "rb") as file:
            return file.read(WORD) == struct.pack("<I", MAGIC)

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """The records of a .rec file: `label`, if it is told, and one field that has to be told."""
        if not fields:
            raise CorruptArtifact(
                f"{path}: records do not say what they hold; name a field with dtype and shape for "
                "the bytes of each record, and label, if it is to be read, as float32"
            )
        maps = Maps([path])
        try:
            records = RecordIORecords(maps, build_now)
            schema = Schema(len(records.begin), tuple(fields))
            records.found(schema)
            return schema
        finally:
            maps.close()


class _RecordIOWriter(ShardWriter):
    """One file of records of one size, but for those that hold the magic word."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self._file = path / DATA_FILE
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
        """The records, those that hold the magic word in parts."""
        words = table.view("<u4")[:, HEAD.size // WORD : (HEAD.size + self._size) // WORD]
        held = (words == MAGIC).any(1)
        records: list[bytes | memoryview] = [raw_bytes(table)] if not held.any() else []
        sizes = np.full(len(table), table.shape[1])
        if held.any():
            records = [row.data for row in table]
            for row in np.flatnonzero(held).tolist():
                records[row] = _in_parts(table[row, HEAD.size : HEAD.size + self._size].tobytes(), words[row])
                sizes[row] = len(records[row])
        ends = self._end + np.cumsum(sizes)
        self.begins.frombytes((ends - sizes).astype(np.int64).tobytes())
        self._end = int(ends[-1])
        return records[0] if len(records) == 1 else b"".join(records)


def _in_parts(data: bytes, words: Array) -> bytes:
    """A record whose data hold the magic word, as MXNet cuts it: there, and without it."""
    places = (np.flatnonzero(words == MAGIC) * WORD).tolist()
    parts = []
    for number, (low, high) in enumerate(
        zip([0, *(p + WORD for p in places)], [*places, len(data)], strict=True)
    ):
        kind = FIRST if number == 0 else LAST if number == len(places) else MIDDLE
        part = data[low:high]
        parts.append(HEAD.pack(MAGIC, kind << LENGTH_BITS | len(part)) + part + bytes(-len(part) % WORD))
    return b"".join(parts)


def _written_locations(maps: Maps, schema: Schema, load_or_build: LoadOrBuild) -> FieldLocations:
    """Where the fields lie in what we wrote."""
    records = RecordIORecords(maps, load_or_build)
    return records.placed(schema, schema.offsets(IR_HEADER.size), IR_HEADER.size + schema.sample_bytes)
