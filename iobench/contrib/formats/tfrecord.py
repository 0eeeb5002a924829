"""Format tfrecord: files of tf.train.Example records, written and read without TensorFlow.

A record is its length as u64, the length's masked crc32c, the Example, and its masked crc32c; little-endian.
iobench writes `iobench-00000-of-00004.tfrecord`, …, with one bytes value per field, and `schema.json`,
because bytes do not describe their dtype and shape. Existing files may hold lists of floats (stored as
float32 in memory), lists of integers (varints, decoded on reading) and single bytes values, whose fields
the caller names; each may differ in length from record to record.

An Example is a protocol buffer of named features, each a list of bytes, floats or integers:

Example  { Features features = 1; }
Features { map<string, Feature> feature = 1; }
Feature  { BytesList bytes = 1; FloatList floats = 2; Int64List ints = 3; }     one of them
…List    { repeated value = 1; }                                floats and ints are packed
"""

from __future__ import annotations

import itertools
import re
import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.base.files import regular
from iobench.base.finding import Finding
from iobench.base.options import option
from iobench.base.text import listed
from iobench.contrib.formats.shared.external import as_options, check_lengths, not_fixed
from iobench.contrib.formats.shared.mapped_files import Maps, runs
from iobench.contrib.formats.shared.record_writer import (
    ShardWriter,
    check_described,
    describe,
    refuse_large,
    sample_parts,
    shards_bound,
)
from iobench.contrib.formats.shared.records import WHOLE, Column, Decoder, RecordFormat, Records, RecordSource
from iobench.formats import DTYPES, VARIES, Array, Batch, Field, Index, Schema, fields_by_name, raw_bytes
from iobench.formats.folders import files_in, parts_not_read

NAME = re.compile(r"\.tfrec|-\d{5}-of-\d{5}$")  # as TensorFlow's datasets name shards, with or without suffix
PREFIX = "iobench-"  # of files written by iobench, which come with a schema
MOST_BYTES = (1 << 31) - 1  # of a protocol buffer
HEADS = 64  # bytes that surround a value and its name, at most
LENGTH, CRC, HEADER = struct.Struct("<Q"), struct.Struct("<I"), struct.Struct("<QI")
HEAD, TAIL = LENGTH.size + CRC.size, CRC.size
PIECE = 1 << 19  # records scanned at a time: their lists take 12 MiB
GZIP = b"\x1f\x8b"
MASK_DELTA = 0xA282EAD8  # TensorFlow, tsl/lib/hash/crc32c.h
BYTES, FLOATS, INTS = 1, 2, 3
VARINT, FIXED_8, RUN, FIXED_4 = 0, 1, 2, 5  # wire types
ENTRY = b"\x0a"  # field 1, a run of bytes
VALUE = b"\x12"  # field 2, a run of bytes
LONGEST_VARINT = 10
AT_ONCE, LAYOUTS = 4096, 16  # records compared together, and layouts tried among them


@dataclass(frozen=True)
class TfRecord(RecordFormat):
    """TFRecord files of tf.train.Example with one bytes value per field."""

    name: ClassVar[str] = "tfrecord"
    summary: ClassVar[str] = "TFRecord files of tf.train.Example, without TensorFlow"
    library: ClassVar[str] = "crc32c"
    modules: ClassVar[tuple[str, ...]] = ("crc32c",)
    dtypes: ClassVar[frozenset[str]] = frozenset(DTYPES)
    holds_ragged: ClassVar[bool] = True

    shard_bytes: int = option(64 << 20, "maximum bytes per file", minimum=1, unit="bytes")

    def check_schema(self, schema: Schema) -> None:
        """Raise UnsupportedSchema also for samples that are too large for a protocol buffer."""
        super().check_schema(schema)
        sizes = [field.sample_bytes for field in schema.fields]
        size = sum(sizes) + sum(len(p) for p in encoded(schema.fields, sizes) if isinstance(p, bytes))
        self._refuse_large(schema, size, MOST_BYTES, "a protocol buffer")

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write the files and the schema."""
        path.mkdir()
        _TFRecordWriter(path, schema, self.shard_bytes).write(batches)
        describe(path, schema)

    def size_bound(self, schema: Schema) -> int:
        """Return the bytes of the records and of the schema file."""
        each = HEAD + TAIL + sum(HEADS + len(field.name.encode()) for field in schema.fields)
        return shards_bound(schema, each, self.shard_bytes)

    def source(self, path: Path, schema: Schema | None = None) -> Examples:
        """Open the record files."""
        files = _files(path)
        if schema is not None and files[0].name.startswith(PREFIX):
            check_described(path, schema)
        return Examples(path, Maps(files))

    def sniff(self, path: Path) -> bool:
        """Return True for a file, or a folder of files, that begin with a length and its checksum."""
        try:
            with open(regular(file := _files(path)[0]), "rb") as opened:
                head = opened.read(HEAD)
            return len(head) == HEAD and _head(*LENGTH.unpack_from(head)) == head
        except ImportError:  # the error of who reads it names the library
            return NAME.search(file.name) is not None
        except (CorruptArtifact, OSError):
            return False

    def files(self, path: Path) -> Sequence[Path]:
        """Return the record files in a folder."""
        return _files(path)

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Return the features of the first record that are not read."""
        source = self.source(path)
        with closing(source):
            names = fields_by_name(path, sorted(features_of(next(source.scan()), 0)))
        return parts_not_read("feature", names.keys() - {field.name for field in schema.fields})


def _files(path: Path) -> list[Path]:
    """Return a single file, or the record files of a folder in the order of their names."""
    if path.is_dir():
        files = [file for file in files_in(path, "") if NAME.search(file.name)]
        if not files:
            raise CorruptArtifact(
                "it holds no TFRecords by their names",
                kind="no-records",
                path=path,
                expected="files with .tfrecord in their names",
                found=listed([entry.name for entry in sorted(path.iterdir())]) or "an empty folder",
                hint="add that to their names, or name one file instead of the folder",
            )
        return files
    if not path.is_file():
        raise corrupt(path, "TFRecord files", "no such folder")
    return [path]


class Examples(RecordSource):
    """Records of an Example each, whose checksums are verified as they are read, as TensorFlow does."""

    def __init__(self, path: Path, maps: Maps) -> None:
        self.maps, self._path = maps, path
        self._kinds: dict[str, int] = {}  # of the features of the fields, by name
        self._complete = False  # no record may have other features

    def scan(self) -> Iterator[Records]:
        """Yield the records.

        CorruptArtifact of kind ``truncated``, ``compressed`` or ``wrong-checksum`` (of a length).
        """
        first = 0
        for number, path in enumerate(self.maps.files):
            for offset, length in _walk(self.maps[number], path):
                file = np.full(len(offset), number, np.int64)
                yield Records(self.maps, file, offset, length, first)
                first += len(offset)

    def fields(self, records: Records) -> tuple[Field, ...]:
        """Return the fields of the first record's features, which all others must have.

        CorruptArtifact of kind ``name-clash``, or ``fields-needed``: a feature of bytes does not state its
        dtype and shape.
        """
        features = features_of(records, 0)
        names = fields_by_name(self._path, sorted(features))
        kinds = {key: features[key].kind for key in names.values()}
        begin, size = spans_of(records, kinds)
        places = {key: (begin[number], size[number]) for number, key in enumerate(kinds)}
        known = [
            _field(records, name, kinds[key], *places[key])
            for name, key in names.items()
            if kinds[key] != BYTES
        ]
        if unknown := [name for name, key in names.items() if kinds[key] == BYTES]:
            shapes = ["SHAPE" if np.ptp(places[names[name]][1]) == 0 else "*" for name in unknown]
            typed = [as_options(known)] if known else []
            typed += [f"--field '{name}=DTYPE[{shape}]'" for name, shape in zip(unknown, shapes, strict=True)]
            problem = f"bytes of {', '.join(names[name] for name in unknown)} do not describe dtype and shape"
            hint = f"name the fields to read: {' '.join(typed)}"
            raise CorruptArtifact(problem, "fields-needed", self._path, hint=hint)
        self._complete = True
        return tuple(known)

    def columns(
        self, records: Records, fields: Sequence[Field], thorough: bool = False
    ) -> Mapping[str, Column]:
        """Return the values of the fields' features, and the records.

        CorruptArtifact of kind ``fields-differ`` if a feature has another dtype, or a record has other
        features than those that were inferred; ``unequal-shapes`` if one has another length.
        """
        self._kinds = self._kinds or self._kinds_of(records, fields)
        begins, sizes = spans_of(records, self._kinds, as_options(fields) if self._complete else None)
        columns = {WHOLE: Column(records.offset, records.length)}
        for number, (field, kind) in enumerate(zip(fields, self._kinds.values(), strict=True)):
            begin, size = begins[number], sizes[number]
            if kind == INTS:
                counts, each = counts_of(records, begin, size), field.elements
                check_lengths(field, counts, each, "numbers", records.path, records.first)
                columns[field.name] = Column(begin, size, True, int(counts.sum()) // each)
            else:
                check_lengths(field, size, field.sample_bytes, "bytes", records.path, records.first)
                columns[field.name] = Column.of(field, begin, size)
        return columns

    def decoder(self, field: Field) -> Decoder:
        """Return the decoder of packed integers."""

        def elements(path: Path, stored: memoryview) -> Array:
            try:
                return unpacked(stored)
            except ValueError as error:
                raise corrupt(path, "packed integers", error) from error

        return Decoder(elements)

    def verify(self, file: Index, offset: Index, size: Index, rows: Index) -> None:
        """Raise CorruptArtifact (``wrong-checksum``) if the data of a record do not match its checksum."""
        from crc32c import crc32c

        ends = offset + size
        for number, begin, end, row in zip(*(a.tolist() for a in (file, offset, ends, rows)), strict=True):
            stored = self.maps[number].data
            (expected,) = CRC.unpack(stored[end : end + TAIL])
            if (actual := masked(crc32c(stored[begin:end]))) != expected:
                raise corrupt(
                    self.maps.files[number],
                    f"checksum {expected:08x} of record {row}",
                    f"{actual:08x}",
                    kind="wrong-checksum",
                )

    def _kinds_of(self, records: Records, fields: Sequence[Field]) -> dict[str, int]:
        """Return the kind of the feature of each field, by its name in the first record."""
        features, folder = features_of(records, 0), self.maps.files[0].parent
        names = fields_by_name(folder, sorted(features))
        if missing := [field.name for field in fields if field.name not in names]:
            raise corrupt(folder, f"features {', '.join(missing)}", ", ".join(names) or "none")
        kinds = {names[field.name]: features[names[field.name]].kind for field in fields}
        for field, kind in zip(fields, kinds.values(), strict=True):
            stored = {FLOATS: "float32", INTS: "int64"}.get(kind, field.dtype)
            if field.dtype != stored:
                problem = f"feature {field.name} has another dtype"
                raise CorruptArtifact(
                    problem, "fields-differ", records.path(0), expected=field.dtype, found=stored
                )
        return kinds


def _field(records: Records, name: str, kind: int, begin: Index, size: Index) -> Field:
    """Return the field of a list of floats or integers; one value is a scalar."""
    counts = size // 4 if kind == FLOATS else counts_of(records, begin, size)
    dtype, count = "float32" if kind == FLOATS else "int64", int(counts.max())
    if not count:
        raise not_fixed(records.path(0), f"feature {name}", "only empty lists")
    if counts.min() < count:
        return Field(name, (VARIES,), dtype)
    return Field(name, () if count == 1 else (count,), dtype)


def _walk(stored: Array, path: Path) -> Iterator[tuple[Index, Index]]:
    """Yield offset and length of the data of a file's records, piece by piece."""
    from crc32c import crc32c

    data, place = stored.data, 0
    offset, length = array("q"), array("q")
    while place < len(data):
        left = len(data) - place
        size, crc = HEADER.unpack_from(data, place) if left >= HEAD + TAIL else (left, 0)
        if size > left - HEAD - TAIL:
            if place == 0 and data[: len(GZIP)] == GZIP:
                hint = "write its records without compression"
                raise CorruptArtifact("the file is compressed", "compressed", path, hint=hint)
            raise corrupt(path, f"a record of {size} bytes at byte {place}", f"{left} bytes", "truncated")
        if crc != masked(crc32c(data[place : place + LENGTH.size])):
            at = f"the length of a record at byte {place}"
            raise corrupt(path, at, "another checksum", kind="wrong-checksum")
        offset.append(place + HEAD)
        length.append(size)
        place += HEAD + size + TAIL
        if len(offset) == PIECE or place >= len(data):
            yield np.frombuffer(offset, np.int64), np.frombuffer(length, np.int64)
            offset, length = array("q"), array("q")


def masked(crc: int) -> int:
    """Return a crc32c as TFRecords store it."""
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


class _TFRecordWriter(ShardWriter):
    """Writer of records, which differ only in the fields' bytes and the checksum if they are of one size."""

    def __init__(self, path: Path, schema: Schema, shard_bytes: int) -> None:
        self._path = path
        parts = encoded(schema.fields, [field.sample_bytes for field in schema.fields])
        size = sum(len(p) if isinstance(p, bytes) else p.sample_bytes for p in parts)
        super().__init__(schema, [_head(size), *parts, bytes(TAIL)], shard_bytes)

    def path_of(self, number: int) -> Path:
        of = "" if self.schema.ragged else f"-of-{self.shards:05d}"  # whose number is not known before
        return self._path / f"{PREFIX}{number:05d}{of}.tfrecord"

    def stored(self, table: Array, first: int) -> bytes | memoryview:
        from crc32c import crc32c

        data, width = raw_bytes(table), table.shape[1]
        for row in range(len(table)):
            end = (row + 1) * width - TAIL
            CRC.pack_into(data, end, masked(crc32c(data[row * width + HEAD : end])))
        return data

    def records(self, batches: Iterable[Batch]) -> Iterator[bytes]:
        from crc32c import crc32c

        fields = self.schema.fields
        for values in itertools.chain.from_iterable(sample_parts(batch, fields) for batch in batches):
            parts, rest = encoded(fields, list(map(len, values))), iter(values)  # in the order of the fields
            data = b"".join(part if isinstance(part, bytes) else next(rest) for part in parts)
            what, limit = "format tfrecord cannot hold a sample", "the limit of a protocol buffer"
            refuse_large(what, len(data), MOST_BYTES, limit)
            yield b"".join([_head(len(data)), data, CRC.pack(masked(crc32c(data)))])


def _head(size: int) -> bytes:
    from crc32c import crc32c

    length = LENGTH.pack(size)
    return length + CRC.pack(masked(crc32c(length)))


@dataclass(frozen=True)
class Span:
    """Range of bytes of a feature's values in an Example; `end` is exclusive."""

    kind: int
    begin: int
    end: int


def varint(value: int) -> bytes:
    """Return a non-negative integer as a varint: seven bits per byte, lowest first."""
    encoding = bytearray()
    while value > 127:
        encoding.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoding, value])


def encoded(fields: Sequence[Field], sizes: Sequence[int]) -> list[bytes | Field]:
    """Return the parts of an Example with a value of so many bytes per field; a Field marks its place."""
    entries: list[bytes | Field] = []
    total = 0
    for field, size in zip(fields, sizes, strict=True):
        head = b""
        for tag in (ENTRY, ENTRY, VALUE):  # inside out: the value in its list, the list, the feature
            head = tag + varint(len(head) + size) + head
        name = field.name.encode()
        key = ENTRY + varint(len(name)) + name
        head = ENTRY + varint(len(key) + len(head) + size) + key + head
        entries += [head, field]
        total += len(head) + size
    return [ENTRY + varint(total), *entries]


def _entry(data: memoryview, begin: int, end: int) -> tuple[str, Span]:
    key, span = "", Span(BYTES, begin, begin)
    for number, _, low, high in _parts(data, begin, end, {1: RUN, 2: RUN}):
        if number == 1:
            key = bytes(data[low:high]).decode("utf-8", "replace")
        else:
            for kind, _, first, last in _parts(data, low, high, {BYTES: RUN, FLOATS: RUN, INTS: RUN}):
                span = _values(data, key, kind, first, last)
    return key, span


def _values(data: memoryview, key: str, kind: int, begin: int, end: int) -> Span:
    """Return the range of a list's values, which may be none; ValueError unless they are in one run."""
    single = {BYTES: RUN, FLOATS: FIXED_4, INTS: VARINT}[kind]
    ranges = [
        (low, high) for _, wire, low, high in _parts(data, begin, end, {1: None}) if wire in (RUN, single)
    ]
    if not ranges:
        return Span(kind, begin, begin)
    if len(ranges) > 1:
        raise ValueError(f"feature {key} has {len(ranges)} separate values, not one packed list")
    return Span(kind, *ranges[0])


def _parts(
    data: memoryview, begin: int, end: int, requested: Mapping[int, int | None]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type, begin and end of the requested parts of a message; skip others."""
    place = begin
    while place < end:
        tag, place = _varint(data, place, end)
        number, wire = tag >> 3, tag & 7
        size = {FIXED_8: 8, FIXED_4: 4}.get(wire, 0)
        start = place
        if wire == VARINT:
            _, place = _varint(data, place, end)
        elif wire == RUN:
            size, start = _varint(data, place, end)
        elif not size:
            raise ValueError(f"a part of wire type {wire}")
        place = max(place, start + size)
        if place > end:
            raise ValueError(f"a part of {size} bytes where {end - start} are left")
        if number in requested:
            if requested[number] not in (None, wire):
                raise ValueError(f"part {number} of wire type {wire}")
            yield number, wire, start, place


def _varint(data: memoryview, place: int, end: int) -> tuple[int, int]:
    value = shift = 0
    for at in range(place, min(end, place + LONGEST_VARINT)):
        value |= (data[at] & 127) << shift
        if data[at] < 128:
            return value, at + 1
        shift += 7
    raise ValueError("an unterminated number")


def unpacked(stored: memoryview) -> Array:
    """Return packed varints as int64; ValueError if the last is unterminated or one is too long."""
    raw = np.frombuffer(stored, np.uint8)
    if not raw.size:
        return np.empty(0, np.int64)
    ends = np.flatnonzero(raw < 128)
    if not ends.size or ends[-1] != len(raw) - 1:
        raise ValueError("an unterminated number")
    begins = np.append(0, ends[:-1] + 1)
    within = np.arange(len(raw)) - np.repeat(begins, ends + 1 - begins)
    if within.max() >= LONGEST_VARINT:
        raise ValueError("a number of more than ten bytes")
    bits = (raw & 127).astype(np.uint64) << (7 * within).astype(np.uint64)
    numbers: Array = np.bitwise_or.reduceat(bits, begins).view(np.int64)
    return numbers


def features_of(records: Records, row: int) -> dict[str, Span]:
    """Return the range of each feature's values in a record; CorruptArtifact if it is not an Example."""
    data = records.data(row)
    try:
        return dict(
            _entry(data, low, high)
            for _, wire, begin, end in _parts(data, 0, len(data), {1: RUN})
            for _, _, low, high in _parts(data, begin, end, {1: wire})
        )
    except ValueError as error:
        expected = f"record {records.first + row} as a tf.train.Example"
        raise corrupt(records.path(row), expected, error) from error


def spans_of(
    records: Records, features: Mapping[str, int], options: str | None = None
) -> tuple[Array, Array]:
    """Return offsets and bytes of the values of each feature, int64 (features, records).

    With `options`, which select the features, a record with others is refused.

    Parses one record and compares many others with it at once: records whose bytes between the values are
    equal have the same layout. This avoids parsing each record.
    """
    count = len(records)
    begin, size = np.empty((len(features), count), np.int64), np.empty((len(features), count), np.int64)
    for low in range(0, count, AT_ONCE):
        left, tried = np.arange(low, min(low + AT_ONCE, count)), 0
        while left.size:
            row, tried = int(left[0]), tried + 1
            spans = features_of(records, row)
            alike = _alike(records, left, row, spans) if tried <= LAYOUTS else left == row
            if options is not None and (others := spans.keys() - features.keys()):
                raise CorruptArtifact(
                    f"record {records.first + row} has a feature that the first one lacks: {min(others)}",
                    kind="fields-differ",
                    path=records.path(row),
                    hint=f"write it to all records, or name the fields to read: {options}",
                )
            for number, (key, kind) in enumerate(features.items()):
                span = spans.get(key)
                if span is None or (span.kind != kind and span.begin < span.end):
                    actual, where = "none" if span is None else "values of another type", records.first + row
                    raise corrupt(records.path(row), f"feature {key} in record {where}", actual)
                begin[number, left[alike]] = records.offset[left[alike]] + span.begin
                size[number, left[alike]] = span.end - span.begin
            left = left[~alike]
    return begin, size


def _alike(records: Records, rows: Index, row: int, spans: Mapping[str, Span]) -> Array:
    """Return a mask of the records that equal record `row`, of these spans, in all bytes between values."""
    alike: Array = records.length[rows] == records.length[row]
    data, stored = np.frombuffer(records.data(row), np.uint8), records.maps[int(records.file[row])]
    ordered = sorted(spans.values(), key=lambda span: span.begin)
    begins, ends = [0, *(span.end for span in ordered)], [*(span.begin for span in ordered), len(data)]
    for low, high in zip(begins, ends, strict=True):
        at = np.flatnonzero(alike)
        for some, piece in runs(stored, records.offset[rows[at]] + low, high - low) if high > low else ():
            alike[at[some]] = (piece == data[low:high]).all(1)
    return alike


def counts_of(records: Records, begin: Index, size: Index) -> Index:
    """Return the number of packed integers in each record, of values at these places."""
    counts, stored = np.zeros(len(size), np.int64), records.maps[int(records.file[0])]
    for width in np.unique(size[size > 0]).tolist():
        rows = np.flatnonzero(size == width)
        for some, packed in runs(stored, begin[rows], width):
            counts[rows[some]] = (packed < 128).sum(1)
    return counts
