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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from iobench.formats._described import check_described, describe
from iobench.formats._errors import CorruptArtifact, UnsupportedSchema, corrupt
from iobench.formats._foreign import FIXED
from iobench.formats._format import Format
from iobench.formats._placed import Found, Maps, PlacedReader, runs
from iobench.formats._placement import Blocks, Index, Listed
from iobench.formats._reader import Keep, find_now
from iobench.formats._records import Record, ShardWriter
from iobench.formats._schema import Array, Batch, Field, Schema, raw_bytes

DATA_FILE, INDEX_FILE = "data.rec", "data.idx"
MAGIC = 0xCED7230A
WORD = 4
HEAD = struct.Struct("<II")  # magic; continuation and length
LENGTH_BITS = 29
MOST_BYTES = (1 << LENGTH_BITS) - 1
WHOLE, FIRST, MIDDLE, LAST = range(4)
IR_HEADER = struct.Struct("<IfQQ")  # flag, label, id, id2
LABEL_AT = 4
ID_AT = 8


@dataclass(frozen=True)
class RecordIO(Format):
    """One .rec file with an index, as MXNet reads them."""

    name: ClassVar[str] = "recordio"
    summary: ClassVar[str] = "MXNet's .rec with .idx, one record per sample, without MXNet"
    library: ClassVar[str] = "numpy"

    def check_schema(self, schema: Schema) -> None:
        """As any format, and refuse samples that are too large for a record."""
        super().check_schema(schema)
        if IR_HEADER.size + schema.sample_bytes > MOST_BYTES:
            largest = max(schema.fields, key=lambda field: field.sample_bytes)
            raise UnsupportedSchema(
                f"format {self.name} cannot hold samples of {schema.sample_bytes} bytes "
                f"(field {largest.name} has {largest.sample_bytes} of them); "
                f"a record has at most {MOST_BYTES}"
            )

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write the records, the index and the schema."""
        path.mkdir()
        writer = _Writer(path, schema)
        writer.write(batches)
        (path / INDEX_FILE).write_text(_index_of(np.frombuffer(writer.begins, np.int64)))
        describe(path, schema)

    def open(self, path: Path, schema: Schema, random: bool = False) -> PlacedReader:
        """A reader; the records are walked when rows are first asked for."""
        if not path.is_dir():
            maps = Maps([path])
            return PlacedReader(schema, maps, lambda kept: _Records(maps, kept).found(schema))
        check_described(path, schema)
        maps = Maps([path / DATA_FILE, path / INDEX_FILE])
        return PlacedReader(schema, maps, lambda kept: _found_ours(maps, schema, kept))

    def size_bound(self, schema: Schema) -> int:
        """Records and lines of the index."""
        record = len(_Writer(Path(), schema).record.pattern)
        lines = 2 + len(str(schema.samples)) + len(str(schema.samples * record))
        return schema.samples * (record + lines) + (1 << 20)

    def recognises(self, path: Path) -> bool:
        """A file whose name ends in .rec and that begins with the magic word."""
        if path.suffix != ".rec" or not path.is_file():
            return False
        with open(path, "rb") as file:
            return file.read(WORD) == struct.pack("<I", MAGIC)

    def schema_of(self, path: Path, told: Sequence[Field] = ()) -> Schema:
        """The records of a .rec file: `label`, if it is told, and one field that has to be told."""
        if not told:
            raise CorruptArtifact(
                f"{path}: records do not say what they hold; name a field with dtype and shape for "
                "the bytes of each record, and label, if it is to be read, as float32"
            )
        maps = Maps([path])
        try:
            records = _Records(maps, find_now)
            schema = Schema(len(records.begin), tuple(told))
            records.found(schema)
            return schema
        finally:
            maps.close()


class _Writer(ShardWriter):
    """One file of records of one size, but for those that hold the magic word."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self._file = path / DATA_FILE
        self._size = IR_HEADER.size + schema.sample_bytes
        self._end = 0
        self.begins = array("q")
        head, padding = HEAD.pack(MAGIC, self._size) + bytes(IR_HEADER.size), bytes(-self._size % WORD)
        super().__init__(schema, Record.of([head, *schema.fields, padding]), schema.samples)

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


def _index_of(begins: Index) -> str:
    return "".join(f"{row}\t{begin}\n" for row, begin in enumerate(begins.tolist()))


class _Records:
    """The records of a file, which an index may lie beside."""

    def __init__(self, maps: Maps, kept: Keep) -> None:
        self._maps, self.path = maps, maps.files[0]
        lists = kept("records", self._walk)
        self.begin, self.size, self._length = lists["begin"], lists["size"], lists["length"]

    def _walk(self) -> dict[str, Array]:
        """Where records begin, the bytes that they take, how long their data are; as the index says, too."""
        begin, size, lengths = array("q"), array("q"), array("q")
        data, place, in_parts = self._maps[0].data, 0, False
        while place < len(data):
            kind, length = _head(data, place, self.path)
            if (kind in (MIDDLE, LAST)) != in_parts:
                raise corrupt(self.path, f"a record at byte {place}", f"a part of kind {kind}")
            if not in_parts:
                begin.append(place)
                size.append(0)
                lengths.append(
                    -WORD if kind == FIRST else 0
                )  # the magic word is between parts, not after them
            in_parts = kind in (FIRST, MIDDLE)
            step = HEAD.size + length + -length % WORD
            size[-1] += step
            lengths[-1] += length + (WORD if kind != WHOLE else 0)
            place += step
            if place > len(data):
                raise corrupt(self.path, f"a record of {length} bytes", "the end of the file")
        if in_parts:
            raise corrupt(self.path, "the last part of a record", "the end of the file")
        lists = {"begin": begin, "size": size, "length": lengths}
        found = {name: np.frombuffer(values, np.int64) for name, values in lists.items()}
        if len(self._maps.files) > 1 and self._maps[1].tobytes() != _index_of(found["begin"]).encode():
            raise corrupt(self._maps.files[1], "the number and offset of each record", "others")
        return found

    @property
    def _in_parts(self) -> Array:
        """Which records are in several parts."""
        found: Array = self.size != HEAD.size + self._length + -self._length % WORD
        return found

    def found(self, schema: Schema) -> Found:
        """Where label and the other field of others' records lie; CorruptArtifact where they are not so."""
        flags = self._flags()
        more = int(flags[0]) if (flags == flags[0]).all() else -1
        fields = {f.name: f for f in schema.fields if f.name != "label"}
        if more < 0 or len(fields) > 1:
            what = "records that differ in how many labels they have" if more < 0 else ", ".join(fields)
            raise CorruptArtifact(f"{self.path}: {what}: one field beside label can be read from a record")
        places = dict.fromkeys(fields, IR_HEADER.size + WORD * more)
        label = next((f for f in schema.fields if f.name == "label"), None)
        if label is not None:
            if (label.dtype, label.elements) != ("float32", max(1, more)):
                raise corrupt(self.path, f"label as {label.dtype} {label.shape}", f"{max(1, more)} × float32")
            places["label"] = IR_HEADER.size if more else LABEL_AT
        end = [places[name] + field.sample_bytes for name, field in fields.items()]
        return self.placed(schema, places, end[0] if end else None)

    def placed(self, schema: Schema, places: Mapping[str, int], size: int | None) -> Found:
        """Where fields lie that begin at these bytes of data, of which there are `size`, if that is known."""
        if len(self.begin) != schema.samples:
            raise corrupt(self.path, f"{schema.samples} records", len(self.begin))
        self._check_sizes(size)
        if self._in_parts.any():
            return Found(blocks=[self._blocks(schema, places, size)])
        file = np.zeros(len(self.begin), np.int64)
        return Found({n: Listed((self.path,), file, self.begin, HEAD.size + at) for n, at in places.items()})

    def _check_sizes(self, size: int | None) -> None:
        """CorruptArtifact where a record has other than `size` bytes, or is too small for an IRHeader."""
        lengths = self._length
        wrong = np.flatnonzero(lengths < IR_HEADER.size if size is None else lengths != size)
        if wrong.size:
            row, least = int(wrong[0]), f"an IRHeader of {IR_HEADER.size}"
            expected = least if size is None else f"{size}; {FIXED}"
            raise CorruptArtifact(
                f"{self.path}: record {row} has {lengths[row]} bytes of data, not {expected}"
            )

    def _blocks(self, schema: Schema, places: Mapping[str, int], size: int | None) -> Blocks:
        """Records one by one, put together out of their parts."""
        fields = {name: schema.field(name) for name in places}

        def decode(number: int, stored: memoryview, out: Mapping[str, Array]) -> None:
            data = _joined(stored, self.path)
            if len(data) < max(places[n] + f.sample_bytes for n, f in fields.items()):
                raise corrupt(self.path, f"record {number} of {size} bytes", len(data))
            for name, target in out.items():
                raw = np.frombuffer(data, np.uint8, fields[name].sample_bytes, places[name])
                target.reshape(-1).view(np.uint8)[:] = raw

        file = np.zeros(len(self.begin), np.int64)
        rows = np.arange(len(self.begin))
        return Blocks(tuple(places), (self.path,), rows, file, self.begin, self.size, decode)

    def _flags(self) -> Index:
        """How many further labels each record says it has, which is what it begins with."""
        self._check_sizes(None)
        flags = np.zeros(len(self.begin), np.int64)
        for row in np.flatnonzero(self._in_parts).tolist():
            flags[row] = IR_HEADER.unpack_from(self._data(row))[0]
        whole = np.flatnonzero(~self._in_parts)
        for some, found in runs(self._maps[0], self.begin[whole] + HEAD.size, WORD):
            flags[whole[some]] = found.view("<u4")[:, 0]
        return flags

    def _data(self, row: int) -> bytes:
        begin = int(self.begin[row])
        return _joined(self._maps[0][begin : begin + int(self.size[row])].data, self.path)


def _head(data: memoryview, place: int, path: Path) -> tuple[int, int]:
    """The continuation and the length that a record begins with."""
    magic, word = HEAD.unpack_from(data, place) if place + HEAD.size <= len(data) else (0, 0)
    if magic != MAGIC or word >> LENGTH_BITS > LAST:
        raise corrupt(
            path, f"a record at byte {place}", "another word than the magic one" if magic else "its end"
        )
    return word >> LENGTH_BITS, word & MOST_BYTES


def _joined(stored: memoryview, path: Path) -> bytes:
    """The data of a record, with the magic word between its parts."""
    parts, place = [], 0
    while place < len(stored):
        _, length = _head(stored, place, path)
        parts.append(bytes(stored[place + HEAD.size : place + HEAD.size + length]))
        place += HEAD.size + length + -length % WORD
    return struct.pack("<I", MAGIC).join(parts)


def _found_ours(maps: Maps, schema: Schema, kept: Keep) -> Found:
    """Where the fields lie in what we wrote."""
    records = _Records(maps, kept)
    places, at = {}, IR_HEADER.size
    for field in schema.fields:
        places[field.name] = at
        at += field.sample_bytes
    return records.placed(schema, places, at)
