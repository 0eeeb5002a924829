"""TFRecord: files of tf.train.Example records, written and read without TensorFlow.

A record: its bytes as u64, their masked crc32c, the Example, its masked crc32c; little-endian. Ours are
`iobench-00000-of-00004.tfrecord`, …, with each field as one value of bytes, and `schema.json`, because such
bytes do not say their dtype and shape. What others wrote may hold lists of floats (which lie as float32
lies in memory), of whole numbers (varints: decoded) and single values of bytes (whose fields are told).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from iobench.base.errors import (
    CorruptArtifact,
    corrupt,
)
from iobench.formats import _example
from iobench.formats._crc32c import masked, masked_rows
from iobench.formats._file_kind import regular
from iobench.formats._format import Format
from iobench.formats._options import option
from iobench.formats._placed_reader import FieldLocations, Maps, PlacedReader
from iobench.formats._placement import Index
from iobench.formats._reader import Convert, LoadOrBuild, identity
from iobench.formats._record_writer import RecordTemplate, ShardWriter, rows_within
from iobench.formats._schema import DTYPES, Array, Batch, Field, Schema, raw_bytes
from iobench.formats._schema_file import check_described, describe
from iobench.formats._tfrecord_fields import fields_of, lists_of, locations_of
from iobench.formats._tfrecords import CRC, HEAD, LENGTH, TAIL, TFRecords, lengths_are_right

OURS = "iobench-"  # what names of files begin with that have a schema beside them
MOST_BYTES = (1 << 31) - 1  # of a protocol buffer


@dataclass(frozen=True)
class TfRecord(Format):
    """TFRecord files of tf.train.Example, one value of bytes per field."""

    name: ClassVar[str] = "tfrecord"
    summary: ClassVar[str] = "TFRecord files of tf.train.Example, without TensorFlow"
    library: ClassVar[str] = "crc32c"
    modules: ClassVar[tuple[str, ...]] = ("crc32c",)
    extra: ClassVar[str] = "tfrecord"
    dtypes: ClassVar[frozenset[str]] = frozenset(DTYPES)

    shard_bytes: int = option(64 << 20, "most bytes of a file", minimum=1, unit="bytes")

    def check_schema(self, schema: Schema) -> None:
        """As any format, and refuse samples that are too large for a protocol buffer."""
        super().check_schema(schema)
        size = sum(
            len(p) if isinstance(p, bytes) else p.sample_bytes for p in _example.encoded(schema.fields)
        )
        self._refuse_large(schema, size, MOST_BYTES, "a protocol buffer")

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write the files and the schema."""
        path.mkdir()
        _TFRecordWriter(path, schema, self.shard_bytes).write(batches)
        describe(path, schema)

    def open(self, path: Path, schema: Schema, random: bool = False) -> TfRecordReader:
        """A reader; the records are walked when rows are first asked for."""
        files = _files(path)
        if files[0].name.startswith(OURS):
            check_described(path, schema)
        return TfRecordReader(schema, Maps(files))

    def size_bound(self, schema: Schema) -> int:
        """Records, and the schema."""
        record = _TFRecordWriter(Path(), schema, self.shard_bytes).record.pattern
        shards = -(-schema.samples // rows_within(self.shard_bytes, len(record)))
        return schema.samples * len(record) + shards * 4096 + (1 << 20)

    def sniff(self, path: Path) -> bool:
        """Whether it is, or is a folder of, files that begin with a length and its checksum."""
        try:
            with open(regular(_files(path)[0]), "rb") as file:
                head = file.read(HEAD)
        except (CorruptArtifact, OSError):
            return False
        return len(head) == HEAD and bool(lengths_are_right(np.frombuffer(head, np.uint8)[None])[0])

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """What the first record says, and all others too; with fields told, these alone."""
        maps = Maps(_files(path))
        try:
            records = TFRecords.of(maps)
            schema = Schema(len(records.file), tuple(fields) or fields_of(path, records))
            lists_of(records, schema)
            return schema
        finally:
            maps.close()


def _files(path: Path) -> list[Path]:
    """The record files of a folder in the order of their names, or the one that `path` is."""
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if ".tfrec" in file.name)
        if not found:
            raise corrupt(path, "a folder of .tfrecord files", "none")
        return found
    if not path.is_file():
        raise corrupt(path, "TFRecord files", "no such folder")
    return [path]


class _TFRecordWriter(ShardWriter):
    """Files of records that differ in the bytes of the fields and their checksum only."""

    def __init__(self, path: Path, schema: Schema, shard_bytes: int) -> None:
        self._path = path
        parts = _example.encoded(schema.fields)
        size = LENGTH.pack(sum(len(p) if isinstance(p, bytes) else p.sample_bytes for p in parts))
        crc = masked_rows(np.frombuffer(size, np.uint8)[None]).tobytes()
        record = RecordTemplate.of([size + crc, *parts, bytes(TAIL)])
        super().__init__(schema, record, rows_within(shard_bytes, len(record.pattern)))

    def path_of(self, number: int) -> Path:
        return self._path / f"{OURS}{number:05d}-of-{self.shards:05d}.tfrecord"

    def stamp(self, table: Array, first: int) -> None:
        from crc32c import crc32c

        data, width = raw_bytes(table), table.shape[1]
        for row in range(len(table)):
            end = (row + 1) * width - TAIL
            CRC.pack_into(data, end, masked(crc32c(data[row * width + HEAD : end])))


class TfRecordReader(PlacedReader):
    """Checks the checksum of every record that it reads, as TensorFlow does."""

    def __init__(self, schema: Schema, maps: Maps) -> None:
        super().__init__(schema, maps, self._look)
        self._records: TFRecords | None = None

    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """One sample, after its record was verified."""
        sample = super().sample(row, convert)
        self._verify(np.array([row]))
        return sample

    def _look(self, load_or_build: LoadOrBuild) -> FieldLocations:
        lists = load_or_build("records", lambda: TFRecords.of(self._maps).lists())
        self._records = records = TFRecords(self._maps, lists["file"], lists["offset"], lists["length"])
        return locations_of(
            records, self.schema, load_or_build("features", lambda: lists_of(records, self.schema))
        )

    def _read_rows(self, rows: Index, out: Mapping[str, Array]) -> None:
        super()._read_rows(rows, out)
        self._verify(rows)

    def _verify(self, rows: Index) -> None:
        if self._records is not None:
            self._records.verify(rows)
