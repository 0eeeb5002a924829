"""Format tfrecord: files of tf.train.Example records, written and read without TensorFlow.

A record is its length as u64, the length's masked crc32c, the Example, and its masked crc32c; little-endian.
iobench writes `iobench-00000-of-00004.tfrecord`, …, with one bytes value per field, and `schema.json`,
because bytes do not describe their dtype and shape. Existing files may hold lists of floats (stored as
float32 in memory), lists of integers (varints, decoded on reading) and single bytes values, whose fields
the caller names; each may differ in length from record to record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.base.files import regular
from iobench.base.options import option
from iobench.contrib.formats.shared.placed_reader import FieldLocations, Maps, PlacedReader
from iobench.contrib.formats.shared.schema_file import check_described, describe
from iobench.contrib.formats.tfrecord import example
from iobench.contrib.formats.tfrecord.fields import fields_of, lists_of, locations_of, totals_of
from iobench.contrib.formats.tfrecord.records import HEAD, TFRecords, lengths_are_right
from iobench.contrib.formats.tfrecord.writer import MOST_BYTES, PREFIX, most_bytes, write_files
from iobench.formats import (
    DTYPES,
    Array,
    Batch,
    Convert,
    Detectable,
    Field,
    Format,
    Index,
    LoadOrBuild,
    Schema,
    identity,
)


@dataclass(frozen=True)
class TfRecord(Format, Detectable):
    """TFRecord files of tf.train.Example with one bytes value per field."""

    name: ClassVar[str] = "tfrecord"
    summary: ClassVar[str] = "TFRecord files of tf.train.Example, without TensorFlow"
    library: ClassVar[str] = "crc32c"
    modules: ClassVar[tuple[str, ...]] = ("crc32c",)
    extra: ClassVar[str] = "tfrecord"
    dtypes: ClassVar[frozenset[str]] = frozenset(DTYPES)
    holds_ragged: ClassVar[bool] = True

    shard_bytes: int = option(64 << 20, "maximum bytes per file", minimum=1, unit="bytes")

    def check_schema(self, schema: Schema) -> None:
        """Raise UnsupportedSchema also for samples that are too large for a protocol buffer."""
        super().check_schema(schema)
        sizes = [field.sample_bytes for field in schema.fields]
        size = sum(sizes) + sum(len(p) for p in example.encoded(schema.fields, sizes) if isinstance(p, bytes))
        self._refuse_large(schema, size, MOST_BYTES, "a protocol buffer")

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write the files and the schema."""
        path.mkdir()
        write_files(path, schema, batches, self.shard_bytes)
        describe(path, schema)

    def open(self, path: Path, schema: Schema, random: bool = False) -> TfRecordReader:
        """Return a reader, which scans the records when rows are first read."""
        files = _files(path)
        if files[0].name.startswith(PREFIX):
            check_described(path, schema)
        return TfRecordReader(schema, Maps(files))

    def size_bound(self, schema: Schema) -> int:
        """Return the bytes of the records and of the schema file."""
        return most_bytes(schema, self.shard_bytes)

    def sniff(self, path: Path) -> bool:
        """Return True for a file, or a folder of files, that begin with a length and its checksum."""
        try:
            with open(regular(_files(path)[0]), "rb") as file:
                head = file.read(HEAD)
        except (CorruptArtifact, OSError):
            return False
        return len(head) == HEAD and bool(lengths_are_right(np.frombuffer(head, np.uint8)[None])[0])

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of the first record, or that of `fields`; checks all other records."""
        with closing(Maps(_files(path))) as maps:
            pieces = TFRecords.scanned(maps)
            first, samples, totals = next(pieces), 0, Counter[str]()
            found = tuple(fields) or fields_of(path, first)
            for lists in lists_of(chain([first], pieces), found):
                samples += len(lists["begin_0"])
                totals.update(totals_of(lists, found))
            return Schema(samples, found, totals=dict(totals))


def _files(path: Path) -> list[Path]:
    """Return a single file, or the record files of a folder in the order of their names."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if ".tfrec" in file.name)
        if not files:
            raise corrupt(path, "a folder of .tfrecord files", "none")
        return files
    if not path.is_file():
        raise corrupt(path, "TFRecord files", "no such folder")
    return [path]


class TfRecordReader(PlacedReader):
    """Verifies the checksum of every record that it reads, as TensorFlow does."""

    def __init__(self, schema: Schema, maps: Maps) -> None:
        super().__init__(schema, maps, self._locate)
        self._records: TFRecords | None = None

    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """Return one sample after its record's checksum was verified."""
        sample = super().sample(row, convert)
        self._verify(np.array([row]))
        return sample

    def _locate(self, load_or_build: LoadOrBuild) -> FieldLocations:
        lists = load_or_build("records", lambda: (part.lists() for part in TFRecords.scanned(self._maps)))
        self._records = records = TFRecords(self._maps, lists["file"], lists["offset"], lists["length"])
        if len(records.file) != self.schema.samples:
            folder = self._maps.files[0].parent
            raise corrupt(folder, f"{self.schema.samples} records", len(records.file))
        features = load_or_build("features", lambda: lists_of(records.pieces(), self.schema.fields))
        return locations_of(records, self.schema, features)

    def _read_rows(self, rows: Index, out: Mapping[str, Array]) -> None:
        super()._read_rows(rows, out)
        self._verify(rows)

    def _verify(self, rows: Index) -> None:
        if self._records is not None:
            self._records.verify(rows)
