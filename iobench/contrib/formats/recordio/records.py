"""Records of a RecordIO file: their offsets and lengths, and records that consist of several parts."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.contrib.formats.shared.external import FIXED
from iobench.contrib.formats.shared.placed_reader import FieldLocations, Maps, runs
from iobench.formats import Array, Blocks, Index, Listed, LoadOrBuild, Schema

MAGIC = 0xCED7230A
WORD = 4
HEAD = struct.Struct("<II")  # magic; continuation and length
LENGTH_BITS = 29
MOST_BYTES = (1 << LENGTH_BITS) - 1
WHOLE, FIRST, MIDDLE, LAST = range(4)
IR_HEADER = struct.Struct("<IfQQ")  # flag, label, id, id2
LABEL_AT = 4
ID_AT = 8
PIECE = 1 << 16  # records listed and compared with the index at a time


def index_of(begins: Index, first: int = 0) -> str:
    """Return the text of an index: number, from `first` on, and offset of each record."""
    return "".join(f"{row}\t{begin}\n" for row, begin in enumerate(begins.tolist(), first))


class RecordIORecords:
    """Records of a file that follow each other, compared with its index if there is one.

    `begin` and `size`, int64, are the offset of each record and the bytes that it takes including headers and
    padding; `first` is the number of records before these.
    """

    def __init__(self, maps: Maps, lists: Mapping[str, Array], first: int = 0) -> None:
        self._maps, self.path, self.first = maps, maps.files[0], first
        self.begin, self.size, self._length = lists["begin"], lists["size"], lists["length"]

    @classmethod
    def of(cls, maps: Maps, load_or_build: LoadOrBuild) -> RecordIORecords:
        """Return all records of a file; CorruptArtifact if they are damaged, or the index differs."""
        return cls(maps, load_or_build("records", lambda: _compared(maps)))

    @classmethod
    def scanned(cls, maps: Maps) -> Iterator[RecordIORecords]:
        """Yield the records of a file piece by piece; raises as `of`."""
        first = 0
        for lists in _compared(maps):
            yield cls(maps, lists, first)
            first += len(lists["begin"])

    def _pieces(self) -> Iterator[RecordIORecords]:
        for low in range(0, len(self.begin), PIECE):
            lists = {"begin": self.begin, "size": self.size, "length": self._length}
            some = {name: np.asarray(part[low : low + PIECE]) for name, part in lists.items()}
            yield RecordIORecords(self._maps, some, self.first + low)

    @cached_property
    def _in_parts(self) -> Array:
        """Mask of the records that consist of several parts."""
        several = np.zeros(len(self.begin), np.bool_)
        for low in range(0, len(several), PIECE):
            some = slice(low, low + PIECE)
            length = np.asarray(self._length[some])
            several[some] = self.size[some] != HEAD.size + length + -length % WORD
        return several

    def labels(self) -> int:
        """Return the number of labels after each IRHeader; CorruptArtifact if records differ in it."""
        flags = [np.unique(piece._flags()) for piece in self._pieces()]
        return labels_of(self.path, np.concatenate(flags))

    def inferred(self, schema: Schema) -> FieldLocations:
        """Return the locations of `label` and one other field in records that another program wrote.

        CorruptArtifact of kind ``unequal-shapes`` (of records or labels), ``too-many-arrays`` or
        ``fields-differ``.
        """
        more = self.labels()
        fields = {f.name: f for f in schema.fields if f.name != "label"}
        if len(fields) > 1:
            raise CorruptArtifact(
                "too many fields",
                kind="too-many-arrays",
                path=self.path,
                expected="label and at most one other field",
                found=", ".join(fields),
            )
        places = dict.fromkeys(fields, IR_HEADER.size + WORD * more)
        label = next((f for f in schema.fields if f.name == "label"), None)
        if label is not None:
            if (label.dtype, label.elements) != ("float32", max(1, more)):
                raise CorruptArtifact(
                    "label has another dtype or shape",
                    kind="fields-differ",
                    path=self.path,
                    expected=f"{label.dtype} {label.shape}",
                    found=f"{max(1, more)} × float32",
                )
            places["label"] = IR_HEADER.size if more else LABEL_AT
        end = [places[name] + field.sample_bytes for name, field in fields.items()]
        least = IR_HEADER.size + WORD * more
        return self.placed(schema, places, end[0] if end else None, least)

    def placed(
        self, schema: Schema, places: Mapping[str, int], size: int | None, least: int = IR_HEADER.size
    ) -> FieldLocations:
        """Return the locations of fields at these byte offsets in the records' data.

        Each record must hold `size` bytes of data, or at least `least` if `size` is None.
        """
        if len(self.begin) != schema.samples:
            raise corrupt(self.path, f"{schema.samples} records", len(self.begin))
        self._check_sizes(size, least)
        if self._in_parts.any():
            return FieldLocations(blocks=[self._blocks(schema, places, size)])
        file = np.broadcast_to(np.int64(0), self.begin.shape)
        return FieldLocations(
            {n: Listed((self.path,), file, self.begin, HEAD.size + at) for n, at in places.items()}
        )

    def _check_sizes(self, size: int | None, least: int = IR_HEADER.size) -> None:
        """Raise CorruptArtifact if a record does not hold `size` bytes, or fewer than `least` for None."""
        lengths = self._length
        wrong = np.flatnonzero(lengths < least if size is None else lengths != size)
        if wrong.size:
            row, number = int(wrong[0]), self.first + int(wrong[0])
            raise CorruptArtifact(
                f"record {number} is too short" if size is None else f"record {number} has another size",
                kind="truncated" if size is None else "unequal-shapes",
                path=self.path,
                expected=f"an IRHeader with labels, {least} bytes" if size is None else f"{size} bytes",
                found=f"{lengths[row]} bytes",
                hint=None if size is None else FIXED,
            )

    def _blocks(self, schema: Schema, places: Mapping[str, int], size: int | None) -> Blocks:
        """Return each record as a block, whose decoder joins its parts."""
        fields = {name: schema.field(name) for name in places}

        def decode(number: int, stored: memoryview, out: Mapping[str, Array]) -> None:
            data = _joined(stored, self.path)
            if len(data) < max(places[n] + f.sample_bytes for n, f in fields.items()):
                raise corrupt(self.path, f"record {number} of {size} bytes", len(data))
            for name, target in out.items():
                raw = np.frombuffer(data, np.uint8, fields[name].sample_bytes, places[name])
                target.reshape(-1).view(np.uint8)[:] = raw

        file = np.broadcast_to(np.int64(0), self.begin.shape)
        rows = np.arange(len(self.begin))
        return Blocks(tuple(places), (self.path,), rows, file, self.begin, self.size, decode)

    def _flags(self) -> Index:
        """Return the flag of each record's IRHeader: its number of further labels."""
        self._check_sizes(None)
        flags = np.zeros(len(self.begin), np.int64)
        for row in np.flatnonzero(self._in_parts).tolist():
            flags[row] = IR_HEADER.unpack_from(self._data(row))[0]
        whole = np.flatnonzero(~self._in_parts)
        for some, words in runs(self._maps[0], self.begin[whole] + HEAD.size, WORD):
            flags[whole[some]] = words.view("<u4")[:, 0]
        return flags

    def _data(self, row: int) -> bytes:
        begin = int(self.begin[row])
        return _joined(self._maps[0][begin : begin + int(self.size[row])].data, self.path)


def labels_of(path: Path, flags: Index) -> int:
    """Return the number of labels that records with these flags have; CorruptArtifact if they differ."""
    if (flags != flags[0]).any():
        raise CorruptArtifact(
            "the records differ in their number of labels",
            kind="unequal-shapes",
            path=path,
            found=f"{int(flags.min())} to {int(flags.max())} labels after the header",
        )
    return int(flags[0])


def _compared(maps: Maps) -> Iterator[dict[str, Array]]:
    """Yield the lists of a file's records piece by piece; CorruptArtifact if its index differs."""
    if len(maps.files) == 1:
        yield from _walk(maps[0], maps.files[0])
        return
    stored, place, first = maps[1], 0, 0
    wrong = corrupt(maps.files[1], "the number and offset of each record", "others", kind="invalid-index")
    for lists in _walk(maps[0], maps.files[0]):
        text = index_of(lists["begin"], first).encode()
        if stored[place : place + len(text)].tobytes() != text:
            raise wrong
        place, first = place + len(text), first + len(lists["begin"])
        yield lists
    if place != len(stored):
        raise wrong


def _walk(stored: Array, path: Path) -> Iterator[dict[str, Array]]:
    """Yield offset, size and data length of a file's records, piece by piece."""
    begin, size, lengths = array("q"), array("q"), array("q")
    data, place, in_parts = stored.data, 0, False
    while place < len(data):
        kind, length = _head(data, place, path)
        if (kind in (MIDDLE, LAST)) != in_parts:
            raise corrupt(path, f"a record at byte {place}", f"part {kind} of a record")
        if not in_parts:
            if len(begin) == PIECE:
                yield _arrays(begin, size, lengths)
                begin, size, lengths = array("q"), array("q"), array("q")
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
    yield _arrays(begin, size, lengths)


def _arrays(begin: array[int], size: array[int], length: array[int]) -> dict[str, Array]:
    lists = {"begin": begin, "size": size, "length": length}
    return {name: np.frombuffer(values, np.int64) for name, values in lists.items()}


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
