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

from iobench.formats import _example
from iobench.formats._crc import masked, masked_rows
from iobench.formats._described import check_described, describe
from iobench.formats._errors import CorruptArtifact, UnsupportedSchema, corrupt
from iobench.formats._example import BYTES, FLOATS, INTS, Layout, Span
from iobench.formats._foreign import FIXED, fields_by_name, not_fixed
from iobench.formats._format import Format
from iobench.formats._options import option
from iobench.formats._placed import Found, Maps, PlacedReader, runs
from iobench.formats._placement import Blocks, Decode, Index, Listed, Placement
from iobench.formats._reader import Convert, Keep, same
from iobench.formats._records import Record, ShardWriter, rows_within
from iobench.formats._schema import Array, Batch, Field, Schema, raw_bytes
from iobench.formats._tfrecords import CRC, HEAD, LENGTH, TAIL, Records, lengths_are_right

OURS = "iobench-"  # what names of files begin with that have a schema beside them
MOST_BYTES = (1 << 31) - 1  # of a protocol buffer
AT_ONCE, LAYOUTS = 4096, 16  # records that are searched together, and layouts that are tried among them


@dataclass(frozen=True)
class TfRecord(Format):
    """TFRecord files of tf.train.Example, one value of bytes per field."""

    name: ClassVar[str] = "tfrecord"
    summary: ClassVar[str] = "TFRecord files of tf.train.Example, without TensorFlow"
    library: ClassVar[str] = "crc32c"
    modules: ClassVar[tuple[str, ...]] = ("crc32c",)
    extra: ClassVar[str] = "tfrecord"

    shard_bytes: int = option(64 << 20, "most bytes of a file", minimum=1, unit="bytes")

    def check_schema(self, schema: Schema) -> None:
        """As any format, and refuse samples that are too large for a protocol buffer."""
        super().check_schema(schema)
        size = sum(
            len(p) if isinstance(p, bytes) else p.sample_bytes for p in _example.encoded(schema.fields)
        )
        if size > MOST_BYTES:
            largest = max(schema.fields, key=lambda field: field.sample_bytes)
            raise UnsupportedSchema(
                f"format {self.name} cannot hold samples of {size} bytes (field {largest.name} has "
                f"{largest.sample_bytes} of them); a protocol buffer has at most {MOST_BYTES}"
            )

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write the files and the schema."""
        path.mkdir()
        _Writer(path, schema, self.shard_bytes).write(batches)
        describe(path, schema)

    def open(self, path: Path, schema: Schema, random: bool = False) -> TfRecordReader:
        """A reader; the records are walked when rows are first asked for."""
        files = _files(path)
        if files[0].name.startswith(OURS):
            check_described(path, schema)
        return TfRecordReader(schema, Maps(files))

    def size_bound(self, schema: Schema) -> int:
        """Records, and the schema."""
        record = _Writer(Path(), schema, self.shard_bytes).record.pattern
        shards = -(-schema.samples // rows_within(self.shard_bytes, len(record)))
        return schema.samples * len(record) + shards * 4096 + (1 << 20)

    def recognises(self, path: Path) -> bool:
        """Whether it is, or is a folder of, files that begin with a length and its checksum."""
        try:
            with open(_files(path)[0], "rb") as file:
                head = file.read(HEAD)
        except (CorruptArtifact, OSError):
            return False
        return len(head) == HEAD and bool(lengths_are_right(np.frombuffer(head, np.uint8)[None])[0])

    def schema_of(self, path: Path, told: Sequence[Field] = ()) -> Schema:
        """What the first record says, and all others too; with fields told, these alone."""
        maps = Maps(_files(path))
        try:
            records = Records.of(maps)
            fields = tuple(told) or _fields(path, records)
            schema = Schema(len(records.file), fields)
            _look(records, schema)
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


class _Writer(ShardWriter):
    """Files of records that differ in the bytes of the fields and their checksum only."""

    def __init__(self, path: Path, schema: Schema, shard_bytes: int) -> None:
        self._path = path
        parts = _example.encoded(schema.fields)
        size = LENGTH.pack(sum(len(p) if isinstance(p, bytes) else p.sample_bytes for p in parts))
        crc = masked_rows(np.frombuffer(size, np.uint8)[None]).tobytes()
        record = Record.of([size + crc, *parts, bytes(TAIL)])
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
        self._records: Records | None = None

    def sample(self, row: int, convert: Convert = same) -> dict[str, Any]:
        """One sample, after its record was verified."""
        sample = super().sample(row, convert)
        self._verify(np.array([row]))
        return sample

    def _look(self, kept: Keep) -> Found:
        lists = kept("records", lambda: Records.of(self._maps).lists())
        self._records = records = Records(self._maps, lists["file"], lists["offset"], lists["length"])
        return _found(records, self.schema, kept("features", lambda: _look(records, self.schema)))

    def _read_rows(self, rows: Index, out: Mapping[str, Array]) -> None:
        super()._read_rows(rows, out)
        self._verify(rows)

    def _verify(self, rows: Index) -> None:
        if self._records is not None:
            self._records.verify(rows)


def _fields(path: Path, records: Records) -> tuple[Field, ...]:
    """The fields that the first record says it has; CorruptArtifact where it does not say what bytes are."""
    layout = records.layout(0)
    names = fields_by_name(path, sorted(layout.spans))
    if unknown := [key for key in names.values() if layout.spans[key].kind == BYTES]:
        raise CorruptArtifact(
            f"{path}: {', '.join(unknown)}: values of bytes do not say what they are; "
            "name the fields to take, with dtype and shape"
        )
    return tuple(_field(records, name, layout.spans[key]) for name, key in names.items())


def _field(records: Records, name: str, span: Span) -> Field:
    """A list of floats or whole numbers as the first record has it: a single one is a scalar."""
    stored = np.frombuffer(records.data(0)[span.begin : span.end], np.uint8)
    count = len(stored) // 4 if span.kind == FLOATS else int(_example.counts(stored[None])[0])
    if not count:
        raise not_fixed(records.path(0), name, "an empty list in the first record")
    return Field(name, () if count == 1 else (count,), "float32" if span.kind == FLOATS else "int64")


def _found(records: Records, schema: Schema, lists: Mapping[str, Array]) -> Found:
    """Where the fields lie, by what `_look` found."""
    files, rows = records.maps.files, np.arange(schema.samples)
    placement: dict[str, Placement] = {}
    blocks = []
    for number, field in enumerate(schema.fields):
        begin, size = lists[f"begin_{number}"], lists.get(f"size_{number}")
        if size is None:
            placement[field.name] = Listed(files, records.file, begin)
        else:
            decode = _decoder(records, field.name)
            blocks.append(Blocks((field.name,), files, rows, records.file, begin, size, decode))
    return Found(placement, blocks)


def _look(records: Records, schema: Schema) -> dict[str, Array]:
    """Per field, by its number: where each record's values begin, and how long those are that are packed.

    CorruptArtifact where the records do not hold this schema.
    """
    folder = records.maps.files[0].parent
    if len(records.file) != schema.samples:
        raise corrupt(folder, f"{schema.samples} records", len(records.file))
    names = fields_by_name(folder, sorted(records.layout(0).spans))
    if missing := [field.name for field in schema.fields if field.name not in names]:
        raise corrupt(folder, f"features {', '.join(missing)}", ", ".join(names) or "none")
    kinds, begin, size = _spans(records, [names[field.name] for field in schema.fields])
    lists: dict[str, Array] = {}
    for number, field in enumerate(schema.fields):
        held, expected = {
            FLOATS: ("float32", "floats, float32"),
            INTS: ("int64", "whole numbers, int64"),
        }.get(kinds[number], (field.dtype, "bytes"))
        if field.dtype != held:
            raise corrupt(records.path(0), f"{field.name} as {field.dtype}", expected)
        lists[f"begin_{number}"] = begin[number]
        if kinds[number] == INTS:
            lists[f"size_{number}"] = size[number]
            held_numbers = _counts(records, begin[number], size[number])
            _refuse_others(records, field, held_numbers, field.elements, "numbers")
        else:
            _refuse_others(records, field, size[number], field.sample_bytes, "bytes")
    return lists


def _spans(records: Records, keys: Sequence[str]) -> tuple[list[int], Array, Array]:
    """The kind of each feature, and per feature and record where its values begin and how long they are.

    Records are compared with one whose layout is known, many at a time: what is no value must be the same.
    """
    count = len(records.file)
    kinds = [records.layout(0).spans[key].kind for key in keys]
    begin, size = np.empty((len(keys), count), np.int64), np.empty((len(keys), count), np.int64)
    for low in range(0, count, AT_ONCE):
        left, tried = np.arange(low, min(low + AT_ONCE, count)), 0
        while left.size:
            row, tried = int(left[0]), tried + 1
            layout = records.layout(row)
            alike = _alike(records, left, row, layout) if tried <= LAYOUTS else left == row
            for number, key in enumerate(keys):
                span = layout.spans.get(key)
                if span is None or span.kind != kinds[number]:
                    found = "none" if span is None else "values of another kind"
                    raise corrupt(records.path(row), f"feature {key} in record {row}", found)
                begin[number, left[alike]] = records.offset[left[alike]] + span.begin
                size[number, left[alike]] = span.end - span.begin
            left = left[~alike]
    return kinds, begin, size


def _alike(records: Records, rows: Index, row: int, layout: Layout) -> Array:
    """Which of these records equal one in all that is no value of a feature."""
    alike: Array = (records.length[rows] == layout.size) & (records.file[rows] == records.file[row])
    data, stored = np.frombuffer(records.data(row), np.uint8), records.maps[int(records.file[row])]
    for low, high in layout.between:
        at = np.flatnonzero(alike)
        for some, found in runs(stored, records.offset[rows[at]] + low, high - low):
            alike[at[some]] = (found == data[low:high]).all(1)
    return alike


def _counts(records: Records, begin: Index, size: Index) -> Index:
    """How many packed whole numbers each record has."""
    held = np.zeros(len(size), np.int64)
    for number in np.unique(records.file).tolist():
        for width in np.unique(size[records.file == number]).tolist():
            rows = np.flatnonzero((records.file == number) & (size == width))
            for some, packed in runs(records.maps[number], begin[rows], max(1, width)):
                held[rows[some]] = _example.counts(packed) if width else 0
    return held


def _decoder(records: Records, name: str) -> Decode:
    """What unpacks whole numbers, one record's to a block."""

    def decode(number: int, stored: memoryview, out: Mapping[str, Array]) -> None:
        target = out[name]
        try:
            target[...] = _example.unpacked(stored).reshape(target.shape)
        except ValueError as error:
            raise corrupt(records.path(number), f"{name} of record {number}", error) from error

    return decode


def _refuse_others(records: Records, field: Field, found: Index, expected: int, what: str) -> None:
    """CorruptArtifact where a record holds more or less of a field than it should."""
    if (wrong := np.flatnonzero(found != expected)).size:
        row = int(wrong[0])
        raise CorruptArtifact(
            f"{records.path(row)}: {field.name} of record {row} has {found[row]} {what}, not {expected} as "
            f"{field.dtype} {field.shape}; {FIXED}"
        )
