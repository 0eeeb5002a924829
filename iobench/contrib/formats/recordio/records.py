"""Records of a RecordIO file: their offsets and lengths, and records that consist of several parts."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.contrib.formats.shared.placed_reader import Maps, runs
from iobench.formats import Array, Index, LoadOrBuild

MAGIC = 0xCED7230A
WORD = 4
HEAD = struct.Struct("<II")  # magic; continuation and length
LENGTH_BITS = 29
MOST_BYTES = (1 << LENGTH_BITS) - 1
WHOLE, FIRST, MIDDLE, LAST = range(4)
IR_HEADER = struct.Struct("<IfQQ")  # flag, label, id, id2
PIECE = 1 << 16  # records listed and compared with the index at a time


def index_of(begins: Index, first: int = 0) -> str:
    """Return the text of an index: number, from `first` on, and offset of each record."""
    return "".join(f"{row}\t{begin}\n" for row, begin in enumerate(begins.tolist(), first))


class RecordIORecords:
    """Records of a file that follow each other, compared with its index if there is one.

    `begin` and `size`, int64, are the offset of each record and the bytes that it takes including headers and
    padding, and `length` the bytes of its data; `first` is the number of records before these.
    """

    def __init__(self, maps: Maps, lists: Mapping[str, Array], first: int = 0) -> None:
        self._maps, self.path, self.first = maps, maps.files[0], first
        self.begin, self.size, self.length = lists["begin"], lists["size"], lists["length"]

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

    def pieces(self) -> Iterator[RecordIORecords]:
        """Yield the same records piece by piece."""
        for low in range(0, len(self.begin), PIECE):
            lists = {"begin": self.begin, "size": self.size, "length": self.length}
            some = {name: np.asarray(part[low : low + PIECE]) for name, part in lists.items()}
            yield RecordIORecords(self._maps, some, self.first + low)

    @cached_property
    def in_parts(self) -> Array:
        """Mask of the records that consist of several parts."""
        several = np.zeros(len(self.begin), np.bool_)
        for low in range(0, len(several), PIECE):
            some = slice(low, low + PIECE)
            length = np.asarray(self.length[some])
            several[some] = self.size[some] != HEAD.size + length + -length % WORD
        return several

    def read(self, at: int, width: int) -> Array:
        """Return the bytes `at` to `at + width` of the data of each record, uint8 (records, width)."""
        data = np.empty((len(self.begin), width), np.uint8)
        for row in np.flatnonzero(self.in_parts).tolist():
            data[row] = np.frombuffer(self._data(row), np.uint8, width, at)
        whole = np.flatnonzero(~self.in_parts)
        for some, piece in runs(self._maps[0], self.begin[whole] + HEAD.size + at, width):
            data[whole[some]] = piece
        return data

    def check_least(self, least: Index) -> None:
        """Raise CorruptArtifact (``truncated``) if a record holds fewer bytes of data than its `least`."""
        if (wrong := np.flatnonzero(self.length < least)).size:
            row = int(wrong[0])
            raise CorruptArtifact(
                f"record {self.first + row} is too short",
                kind="truncated",
                path=self.path,
                expected=f"at least {least[row]} bytes",
                found=f"{self.length[row]} bytes",
            )

    def _data(self, row: int) -> bytes:
        begin = int(self.begin[row])
        return joined(self._maps[0][begin : begin + int(self.size[row])].data, self.path)


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


def joined(stored: memoryview, path: Path) -> bytes:
    """Return a record's data: its parts, joined by the magic word."""
    parts, place = [], 0
    while place < len(stored):
        _, length = _head(stored, place, path)
        parts.append(bytes(stored[place + HEAD.size : place + HEAD.size + length]))
        place += HEAD.size + length + -length % WORD
    return struct.pack("<I", MAGIC).join(parts)
