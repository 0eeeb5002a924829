"""Format recordio: MXNet's `data.rec` with `data.idx`, written and read without MXNet.

A record is a magic word, a word with 3 bits of continuation and 29 bits of length, the data, and padding to
a whole word. If the data contain the magic word at a word boundary, the record is split there into parts
(1 the first, 2 the middle, 3 the last), so that readers can search for the magic word. The index has one line
per record, `number<tab>offset`. The data are laid out as by `mxnet.recordio.pack`: an IRHeader (flag u32,
label f32, id u64, id2 u64), `flag` further labels, and the packed bytes: here the sample's fields in the
order of `schema.json`.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from iobench.base.errors import CorruptArtifact
from iobench.contrib.formats.recordio.records import (
    FIRST,
    HEAD,
    ID_AT,
    IR_HEADER,
    LAST,
    LENGTH_BITS,
    MAGIC,
    MIDDLE,
    MOST_BYTES,
    PIECE,
    WORD,
    RecordIORecords,
    index_of,
    labels_of,
)
from iobench.contrib.formats.shared.placed_reader import FieldLocations, Maps, PlacedReader
from iobench.contrib.formats.shared.record_writer import RecordTemplate, ShardWriter
from iobench.contrib.formats.shared.schema_file import check_described, describe
from iobench.formats import DTYPES, Array, Batch, Detectable, Field, Format, LoadOrBuild, Schema, raw_bytes

DATA_FILE, INDEX_FILE = "data.rec", "data.idx"


@dataclass(frozen=True)
class RecordIO(Format, Detectable):
    """One .rec file with an index for MXNet."""

    name: ClassVar[str] = "recordio"
    summary: ClassVar[str] = "MXNet's .rec with .idx, one record per sample, without MXNet"
    library: ClassVar[str] = "numpy"
    dtypes: ClassVar[frozenset[str]] = frozenset(DTYPES)

    def check_schema(self, schema: Schema) -> None:
        """Raise UnsupportedSchema also for samples that are too large for a record."""
        super().check_schema(schema)
        self._refuse_large(schema, IR_HEADER.size + schema.sample_bytes, MOST_BYTES, "a record")

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write the records, the index and the schema."""
        path.mkdir()
        writer = _RecordIOWriter(path, schema)
        writer.write(batches)
        with open(path / INDEX_FILE, "w") as index:
            for low in range(0, len(writer.begins), PIECE):
                index.write(index_of(np.frombuffer(writer.begins[low : low + PIECE], np.int64), low))
        describe(path, schema)

    def open(self, path: Path, schema: Schema, random: bool = False) -> PlacedReader:
        """Return a reader, which scans the records when rows are first read."""
        if not path.is_dir():
            maps = Maps([path])
            return PlacedReader(
                schema, maps, lambda load_or_build: RecordIORecords.of(maps, load_or_build).inferred(schema)
            )
        check_described(path, schema)
        maps = Maps([path / DATA_FILE, path / INDEX_FILE])

        def locate(load_or_build: LoadOrBuild) -> FieldLocations:
            records, size = RecordIORecords.of(maps, load_or_build), IR_HEADER.size + schema.sample_bytes
            return records.placed(schema, schema.offsets(IR_HEADER.size), size)

        return PlacedReader(schema, maps, locate)

    def size_bound(self, schema: Schema) -> int:
        """Return the bytes of the records and of the index."""
        record = len(_RecordIOWriter(Path(), schema).record.pattern)
        lines = 2 + len(str(schema.samples)) + len(str(schema.samples * record))
        return schema.samples * (record + lines) + (1 << 20)

    def sniff(self, path: Path) -> bool:
        """Return True for a file whose name ends in .rec and that begins with the magic word."""
        if path.suffix != ".rec" or not path.is_file():
            return False
        with open(path, "rb") as file:
            return file.read(WORD) == struct.pack("<I", MAGIC)

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of a .rec file, of which `fields` names one field and optionally `label`.

        CorruptArtifact of kind ``fields-needed``, ``fields-differ``, ``too-many-arrays`` or
        ``unequal-shapes``.
        """
        if not fields:
            raise CorruptArtifact(
                "records do not describe their fields",
                kind="fields-needed",
                path=path,
                hint="name one for the bytes of a record: --field 'x=float32[3,224,224]'; "
                "add --field label=float32 to read the labels",
            )
        with closing(Maps([path])) as maps:
            samples, labels = 0, list[int]()
            for records in RecordIORecords.scanned(maps):
                labels.append(records.labels())
                labels_of(path, np.array(labels[-2:]))
                records.inferred(Schema(len(records.begin), tuple(fields)))
                samples += len(records.begin)
            return Schema(samples, tuple(fields))


class _RecordIOWriter(ShardWriter):
    """Writer of one file of equally large records, except those that contain the magic word."""

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
        """Return the records, of which those that contain the magic word are split into parts."""
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
    """Return a record split at each magic word in its data, which the split removes, as MXNet does."""
    places = (np.flatnonzero(words == MAGIC) * WORD).tolist()
    parts = []
    for number, (low, high) in enumerate(
        zip([0, *(p + WORD for p in places)], [*places, len(data)], strict=True)
    ):
        kind = FIRST if number == 0 else LAST if number == len(places) else MIDDLE
        part = data[low:high]
        parts.append(HEAD.pack(MAGIC, kind << LENGTH_BITS | len(part)) + part + bytes(-len(part) % WORD))
    return b"".join(parts)
