"""Format recordio: MXNet's `data.rec` with `data.idx`, written and read without MXNet.

A record is a magic word, a word with 3 bits of continuation and 29 bits of length, the data, and padding to
a whole word. If the data contain the magic word at a word boundary, the record is split there into parts
(1 the first, 2 the middle, 3 the last), so that readers can search for the magic word. The index has one line
per record, `number<tab>offset`. The data are laid out as by `mxnet.recordio.pack`: an IRHeader (flag u32,
label f32, id u64, id2 u64), `flag` further labels, and the packed bytes: here the sample's fields in the
order of `schema.json`. If samples differ in length, the bytes are a payload: the fields of one shape, the
length of each of the others as i64, and the elements of each.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from iobench.base.errors import CorruptArtifact
from iobench.contrib.formats.recordio.fields import foreign_fields, foreign_lists, written_fields
from iobench.contrib.formats.recordio.records import (
    IR_HEADER,
    MAGIC,
    MOST_BYTES,
    PIECE,
    WORD,
    RecordIORecords,
    index_of,
)
from iobench.contrib.formats.recordio.writer import most_record_bytes, write_records
from iobench.contrib.formats.shared.external import totals_of
from iobench.contrib.formats.shared.placed_reader import FieldLocations, Maps, PlacedReader
from iobench.contrib.formats.shared.schema_file import check_described, describe
from iobench.formats import DTYPES, Batch, Detectable, Field, Format, LoadOrBuild, Schema

DATA_FILE, INDEX_FILE = "data.rec", "data.idx"


@dataclass(frozen=True)
class RecordIO(Format, Detectable):
    """One .rec file with an index for MXNet."""

    name: ClassVar[str] = "recordio"
    summary: ClassVar[str] = "MXNet's .rec with .idx, one record per sample, without MXNet"
    library: ClassVar[str] = "numpy"
    dtypes: ClassVar[frozenset[str]] = frozenset(DTYPES)
    holds_ragged: ClassVar[bool] = True

    def check_schema(self, schema: Schema) -> None:
        """Raise UnsupportedSchema also for samples that are too large for a record."""
        super().check_schema(schema)
        self._refuse_large(schema, IR_HEADER.size + schema.sample_bytes, MOST_BYTES, "a record")

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write the records, the index and the schema."""
        path.mkdir()
        begins = write_records(path / DATA_FILE, schema, batches)
        with open(path / INDEX_FILE, "w") as index:
            for low in range(0, len(begins), PIECE):
                index.write(index_of(np.frombuffer(begins[low : low + PIECE], np.int64), low))
        describe(path, schema)

    def open(self, path: Path, schema: Schema, random: bool = False) -> PlacedReader:
        """Return a reader, which scans the records when rows are first read."""
        if path.is_dir():
            check_described(path, schema)
            maps, fields_of = Maps([path / DATA_FILE, path / INDEX_FILE]), written_fields
        else:
            maps, fields_of = Maps([path]), foreign_fields

        def locate(load_or_build: LoadOrBuild) -> FieldLocations:
            return fields_of(RecordIORecords.of(maps, load_or_build), schema, load_or_build)

        return PlacedReader(schema, maps, locate)

    def size_bound(self, schema: Schema) -> int:
        """Return the bytes of the records and of the index."""
        records = most_record_bytes(schema)
        lines = 2 + len(str(schema.samples)) + len(str(records))
        return records + schema.samples * lines + (1 << 20)

    def sniff(self, path: Path) -> bool:
        """Return True for a file whose name ends in .rec and that begins with the magic word."""
        if path.suffix != ".rec" or not path.is_file():
            return False
        with open(path, "rb") as file:
            return file.read(WORD) == struct.pack("<I", MAGIC)

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of a .rec file, of which `fields` names one field and optionally `label`.

        CorruptArtifact of kind ``fields-needed``, ``fields-differ``, ``too-many-arrays``, ``truncated`` or
        ``unequal-shapes``.
        """
        if not fields:
            raise CorruptArtifact(
                "records do not describe their fields",
                kind="fields-needed",
                path=path,
                hint="name one for the bytes of a record: --field 'x=float32[3,224,224]', or 'x=uint8[*]' if "
                "they differ in length; add --field label=float32 to read the labels",
            )
        with closing(Maps([path])) as maps:
            samples, totals = 0, Counter[str]()
            for records in RecordIORecords.scanned(maps):
                samples += len(records.begin)
                totals.update(totals_of(foreign_lists(records, fields), fields))
            return Schema(samples, tuple(fields), totals=dict(totals))
