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
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.base.files import begins_with
from iobench.contrib.formats.shared.external import check_lengths, first_true, unequal_samples
from iobench.contrib.formats.shared.mapped_files import Maps, runs
from iobench.contrib.formats.shared.record_writer import ShardWriter, check_described, describe, refuse_large
from iobench.contrib.formats.shared.records import Column, Decoder, RecordFormat, Records, RecordSource
from iobench.formats import DTYPES, Array, Batch, Field, Index, Schema, raw_bytes
from iobench.formats.schema import LENGTH, payloads

DATA_FILE, INDEX_FILE = "data.rec", "data.idx"
MAGIC, WORD = 0xCED7230A, 4
HEAD = struct.Struct("<II")  # magic; continuation and length
LENGTH_BITS = 29
MOST_BYTES = (1 << LENGTH_BITS) - 1
WHOLE, FIRST, MIDDLE, LAST = range(4)
IR_HEADER = struct.Struct("<IfQQ")  # flag, label, id, id2
LABEL_AT, ID_AT = 4, 8  # in an IRHeader
PIECE = 1 << 16  # records compared with the index at a time


@dataclass(frozen=True)
class RecordIO(RecordFormat):
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
        writer = _RecordIOWriter(path / DATA_FILE, schema)
        writer.write(batches)
        begins = writer.begins
        with open(path / INDEX_FILE, "wb") as index:
            for low in range(0, len(begins), PIECE):
                index.write(_index_of(np.frombuffer(begins[low : low + PIECE], np.int64), low))
        describe(path, schema)

    def size_bound(self, schema: Schema) -> int:
        """Return the bytes of the records, unless they contain the magic word, and of the index."""
        each = HEAD.size + IR_HEADER.size + LENGTH.itemsize * len(schema.ragged) + WORD - 1
        records = schema.logical_bytes + schema.samples * each
        lines = 2 + len(str(schema.samples)) + len(str(records))
        return records + schema.samples * lines + (1 << 20)

    def source(self, path: Path, schema: Schema | None = None) -> RecordFile:
        """Open the records of a folder that iobench wrote, or a file of another program."""
        if schema is None or not path.is_dir():
            return RecordFile(path)
        check_described(path, schema)
        return RecordFile(path / DATA_FILE, path / INDEX_FILE, schema)

    def sniff(self, path: Path) -> bool:
        """Return True for a file whose name ends in .rec and that begins with the magic word."""
        return path.suffix == ".rec" and begins_with(path, struct.pack("<I", MAGIC))


Read = Callable[[int, int], Array]  # of the data of some records the bytes from one on, (records, width)


class RecordFile(RecordSource):
    """Records of a file, compared with its index if iobench wrote them, of samples of `written`."""

    def __init__(self, path: Path, index: Path | None = None, written: Schema | None = None) -> None:
        self.maps, self.path, self._written = Maps([path]), path, written
        self._index = None if index is None else Maps([index])  # opened with the data

    def close(self) -> None:
        """Drop the maps, the index's too."""
        super().close()
        if self._index is not None:
            self._index.close()

    @cached_property
    def _records(self) -> tuple[Index, Index, Index]:
        """Offset of each record, the bytes that it takes, and those of its data."""
        return _walk(self.maps[0], self.path)

    @cached_property
    def _in_parts(self) -> bool:
        """True if a record consists of several parts: then all are decoded."""
        _, size, length = self._records
        return bool((size != HEAD.size + length + -length % WORD).any())

    def scan(self) -> Iterator[Records]:
        """Yield the records; CorruptArtifact of kind ``invalid-index`` if the index differs."""
        begin, size, _ = self._records
        if self._index is not None:
            _compare(self._index, begin)
        for low in range(0, len(begin), PIECE):
            some = slice(low, low + PIECE)
            yield Records(self.maps, np.zeros(len(begin[some]), np.int64), begin[some], size[some], low)

    def fields(self, records: Records) -> tuple[Field, ...]:
        """Raise CorruptArtifact (``fields-needed``): nothing describes the data."""
        try:
            return super().fields(records)
        except CorruptArtifact as error:
            raise error.changed(hint=f"{error.hint}; add --field label=float32 to read the labels") from None

    def check(self, fields: Sequence[Field]) -> None:
        """Raise CorruptArtifact unless foreign fields are `label`, of float32, and at most one other."""
        others = [field.name for field in fields if field.name != "label"]
        if self._written is not None:
            return
        if len(others) > 1:
            expected = "label and at most one other field"
            raise CorruptArtifact(
                "too many fields", "too-many-arrays", self.path, expected=expected, found=", ".join(others)
            )
        if wrong := [field.dtype for field in fields if field.name == "label" and field.dtype != "float32"]:
            problem = "label has another dtype"
            raise CorruptArtifact(problem, "fields-differ", self.path, expected=wrong[0], found="float32")

    def columns(
        self, records: Records, fields: Sequence[Field], thorough: bool = False
    ) -> Mapping[str, Column]:
        """Return the places of the fields, or of whole records if some consist of several parts.

        CorruptArtifact of kind ``truncated``, or ``unequal-shapes`` if a field has another length.
        """
        some = slice(records.first, records.first + len(records))
        length, stored = self._records[2][some], self.maps[0]

        def read(at: int, width: int) -> Array:
            data = np.empty((len(length), width), np.uint8)
            if not self._in_parts:
                for piece, found in runs(stored, records.offset + HEAD.size + at, width):
                    data[piece] = found
                return data
            for row in range(len(length)):
                data[row] = np.frombuffer(_joined(records.data(row), self.path), np.uint8, width, at)
            return data

        columns = {}
        for field, (at, size) in self._places(fields, length, read, records.first).items():
            column = Column.of(field, records.offset + HEAD.size + at, size)
            if self._in_parts:
                column = Column(records.offset, records.length, True, column.total)
            columns[field.name] = column
        return columns

    def decoder(self, field: Field) -> Decoder:
        """Return the decoder of a record: its parts are joined, and the field is taken out."""
        fields = (field,) if self._written is None else self._written.fields

        def elements(path: Path, stored: memoryview) -> Array:
            data = np.frombuffer(_joined(stored, path), np.uint8)
            places = self._places(fields, np.array([len(data)]), lambda at, n: data[None, at : at + n], 0)
            at, size = (int(one[0]) for one in places[field])
            return data[at : at + size].view(field.dtype)

        return Decoder(elements)

    def _places(
        self, fields: Sequence[Field], length: Index, read: Read, first: int
    ) -> dict[Field, tuple[Index, Index]]:
        """Return where each field begins in the data of some records, and its bytes.

        The data have these lengths, and `read` reads them.
        """
        self._check_least(length, np.full(len(length), IR_HEADER.size), first)
        places = {}
        if self._written is None:
            more = read(0, WORD).view("<u4")[:, 0].astype(np.int64)  # labels behind the header
            behind = IR_HEADER.size + WORD * more
            self._check_least(length, behind, first)
            for field in fields:
                at, size = behind, length - behind
                if field.name == "label":
                    at, size = np.where(more > 0, IR_HEADER.size, LABEL_AT), WORD * np.maximum(1, more)
                check_lengths(field, size, field.sample_bytes, "bytes", lambda _: self.path, first)
                places[field] = at, size
            return places
        schema = self._written
        for name, begin in schema.fixed.offsets(IR_HEADER.size).items():
            field = schema.field(name)
            places[field] = np.full(len(length), begin), np.full(len(length), field.sample_bytes)
        end = np.full(len(length), IR_HEADER.size + schema.fixed.sample_bytes)
        if not schema.ragged:
            if (row := first_true(length != end)) is not None:
                problem, found = f"record {first + row} has another size", f"{length[row]} bytes"
                raise unequal_samples(self.path, problem, f"{end[row]} bytes", found)
            return places
        width = LENGTH.itemsize * len(schema.ragged)
        counts_at, end = IR_HEADER.size + schema.fixed.sample_bytes, end + width
        self._check_least(length, end, first)
        bad = np.zeros(len(end), np.bool_)
        counts = read(counts_at, width).view(LENGTH).astype(np.int64)
        for field, count in zip(schema.ragged, counts.T, strict=True):
            bad |= (count < 0) | (count > length // field.sample_bytes)
            size = np.where(bad, 0, count) * field.sample_bytes
            places[field] = end, size
            end = end + size
        if (row := first_true(bad | (end != length))) is not None:
            expected = f"record {first + row} as long as its lengths say"
            raise corrupt(self.path, expected, f"{length[row]} bytes")
        return places

    def _check_least(self, length: Index, least: Index, first: int) -> None:
        """Raise CorruptArtifact (``truncated``) if a record holds fewer bytes of data than its `least`."""
        if (row := first_true(length < least)) is not None:
            problem, expected = f"record {first + row} is too short", f"at least {least[row]} bytes"
            found = f"{length[row]} bytes"
            raise CorruptArtifact(problem, "truncated", self.path, expected=expected, found=found)


def _index_of(begins: Index, first: int) -> bytes:
    """Return the lines of an index: number, from `first` on, and offset of each record."""
    return "".join(f"{row}\t{begin}\n" for row, begin in enumerate(begins.tolist(), first)).encode()


def _compare(index: Maps, begins: Index) -> None:
    """Raise CorruptArtifact (``invalid-index``) if an index has other lines."""
    place, same = 0, True
    for low in range(0, len(begins), PIECE):
        text = _index_of(begins[low : low + PIECE], low)
        same &= index[0][place : place + len(text)].tobytes() == text
        place += len(text)
    if not same or place != len(index[0]):
        raise corrupt(index.files[0], "the number and offset of each record", "others", kind="invalid-index")


def _walk(stored: Array, path: Path) -> tuple[Index, Index, Index]:
    """Return offset, size and data length of a file's records."""
    begin, size, lengths = array("q"), array("q"), array("q")
    data, place, in_parts = stored.data, 0, False
    while place < len(data):
        kind, length = _head(data, place, path)
        if (kind in (MIDDLE, LAST)) != in_parts:
            raise corrupt(path, f"a record at byte {place}", f"part {kind} of a record")
        if not in_parts:
            begin.append(place)
            size.append(0)
            # parts are joined by the magic word, which does not follow the last one
            lengths.append(-WORD if kind == FIRST else 0)
        in_parts = kind in (FIRST, MIDDLE)
        step = HEAD.size + length + -length % WORD
        size[-1] += step
        lengths[-1] += length + (WORD if kind != WHOLE else 0)
        place += step
        if place > len(data):
            raise corrupt(path, f"a record of {length} bytes", "the end of the file", kind="truncated")
    if in_parts:
        raise corrupt(path, "the last part of a record", "the end of the file", kind="truncated")
    return np.frombuffer(begin, np.int64), np.frombuffer(size, np.int64), np.frombuffer(lengths, np.int64)


def _head(data: memoryview, place: int, path: Path) -> tuple[int, int]:
    """Return the continuation flag and the length at the start of a part."""
    magic, word = HEAD.unpack_from(data, place) if place + HEAD.size <= len(data) else (0, 0)
    if magic != MAGIC or word >> LENGTH_BITS > LAST:
        raise corrupt(
            path, f"a record at byte {place}", "another magic word" if magic else "the end of the file"
        )
    return word >> LENGTH_BITS, word & MOST_BYTES


def _joined(stored: memoryview, path: Path) -> bytes:
    """Return a record's data: its parts, joined by the magic word."""
    parts, place = [], 0
    while place < len(stored):
        _, length = _head(stored, place, path)
        parts.append(bytes(stored[place + HEAD.size : place + HEAD.size + length]))
        place += HEAD.size + length + -length % WORD
    return struct.pack("<I", MAGIC).join(parts)


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


class _RecordIOWriter(ShardWriter):
    """Writer of one file; records that contain the magic word are larger than others of one size."""

    def __init__(self, file: Path, schema: Schema) -> None:
        self._file = file
        self._size = IR_HEADER.size + schema.sample_bytes
        self._end = 0
        self.begins = array("q")
        head, padding = HEAD.pack(MAGIC, self._size) + bytes(IR_HEADER.size), bytes(-self._size % WORD)
        whole = schema.samples * (len(head) + schema.sample_bytes + len(padding))
        super().__init__(schema, [head, *schema.fields, padding], whole)

    def path_of(self, number: int) -> Path:
        return self._file

    def write(self, batches: Iterable[Batch]) -> list[int]:
        if not self.schema.ragged:
            return super().write(batches)
        with open(self._file, "xb") as opened:  # one by one: there is only this file
            for record in self.records(batches):
                self.begins.append(opened.tell())
                opened.write(record)
        return [len(self.begins)]

    def records(self, batches: Iterable[Batch]) -> Iterator[bytes]:
        row = 0
        for batch in batches:
            for payload in payloads(self.schema, batch):
                what, size = f"format recordio cannot hold sample {row}", IR_HEADER.size + len(payload)
                refuse_large(what, size, MOST_BYTES, "the limit of a record")
                yield _in_parts(IR_HEADER.pack(0, 0.0, row, 0) + payload)
                row += 1

    def stored(self, table: Array, first: int) -> bytes | memoryview:
        """Return the numbered records, of which those that contain the magic word are split into parts."""
        at = HEAD.size + ID_AT
        rows = np.arange(first, first + len(table), dtype="<u8")
        table[:, at : at + 8] = rows.view(np.uint8).reshape(-1, 8)
        words = table.view("<u4")[:, HEAD.size // WORD : (HEAD.size + self._size) // WORD]
        held = (words == MAGIC).any(1)
        sizes = np.full(len(table), table.shape[1])
        records: list[bytes | memoryview] = [raw_bytes(table)] if not held.any() else []
        if held.any():
            records = [row.data for row in table]
            for row in np.flatnonzero(held).tolist():
                records[row] = _in_parts(table[row, HEAD.size : HEAD.size + self._size].tobytes())
                sizes[row] = len(records[row])
        ends = self._end + np.cumsum(sizes)
        self.begins.frombytes((ends - sizes).astype(np.int64).tobytes())
        self._end = int(ends[-1])
        return records[0] if len(records) == 1 else b"".join(records)
