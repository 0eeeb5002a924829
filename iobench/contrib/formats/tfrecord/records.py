"""Records of TFRecord files: their offsets, lengths and checksums."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.contrib.formats.shared.placed_reader import Maps, runs
from iobench.contrib.formats.tfrecord import example
from iobench.contrib.formats.tfrecord.crc32c import masked, masked_rows
from iobench.contrib.formats.tfrecord.example import BadExample, ExampleLayout
from iobench.formats import Array, Index

LENGTH = struct.Struct("<Q")
CRC = struct.Struct("<I")
PIECE = 1 << 19  # records scanned at a time: their lists take 12 MiB
HEAD, TAIL = LENGTH.size + CRC.size, CRC.size
GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class TFRecords:
    """File number, data offset and data length of records, in the order of the files.

    `first` is the number of records before these.
    """

    maps: Maps
    file: Index
    offset: Index
    length: Index
    first: int = 0

    @classmethod
    def scanned(cls, maps: Maps) -> Iterator[TFRecords]:
        """Scan the records and yield them piece by piece.

        CorruptArtifact of kind ``truncated``, ``compressed`` or ``wrong-checksum`` (of a length).
        """
        first = 0
        for number, path in enumerate(maps.files):
            for offset, length in _walk(maps[number], path):
                yield cls(maps, np.full(len(offset), number, np.int64), offset, length, first)
                first += len(offset)

    def pieces(self) -> Iterator[TFRecords]:
        """Yield the same records piece by piece."""
        for low in range(0, len(self.file), PIECE):
            some = slice(low, low + PIECE)
            file, offset, length = (np.asarray(part[some]) for part in (self.file, self.offset, self.length))
            yield TFRecords(self.maps, file, offset, length, self.first + low)

    def lists(self) -> dict[str, Array]:
        """Return the arrays of an index cache."""
        return {"file": self.file, "offset": self.offset, "length": self.length}

    def data(self, row: int) -> memoryview:
        """Return the data of a record."""
        begin = int(self.offset[row])
        return self.maps[int(self.file[row])][begin : begin + int(self.length[row])].data

    def layout(self, row: int) -> ExampleLayout:
        """Return the layout of a record; CorruptArtifact if it is not an Example."""
        try:
            return example.layout_of(self.data(row))
        except BadExample as error:
            raise corrupt(
                self.path(row), f"record {self.first + row} as a tf.train.Example", error
            ) from error

    def path(self, row: int) -> Path:
        """Return the file of a record."""
        return self.maps.files[int(self.file[row])]

    def verify(self, rows: Index) -> None:
        """Raise CorruptArtifact (``wrong-checksum``) if the data of a record do not match its checksum."""
        from crc32c import crc32c

        for row in np.unique(rows).tolist():
            data, end = self.data(row), int(self.offset[row] + self.length[row])
            (expected,) = CRC.unpack(self.maps[int(self.file[row])][end : end + TAIL].tobytes())
            if (actual := masked(crc32c(data))) != expected:
                raise corrupt(
                    self.path(row),
                    f"checksum {expected:08x} of record {row}",
                    f"{actual:08x}",
                    kind="wrong-checksum",
                )


def _walk(stored: Array, path: Path) -> Iterator[tuple[Index, Index]]:
    """Yield offset and length of the data of a file's records, piece by piece."""
    data, place = stored.data, 0
    offset, length = array("q"), array("q")
    while place < len(data):
        left = len(data) - place
        size = LENGTH.unpack_from(data, place)[0] if left >= HEAD + TAIL else left
        if size > left - HEAD - TAIL:
            if place == 0 and data[: len(GZIP)] == GZIP:
                raise CorruptArtifact(
                    "the file is compressed",
                    kind="compressed",
                    path=path,
                    hint="write its records without compression",
                )
            raise corrupt(path, f"a record of {size} bytes at byte {place}", f"{left} bytes", "truncated")
        offset.append(place + HEAD)
        length.append(size)
        place += HEAD + size + TAIL
        if len(offset) == PIECE or place >= len(data):
            found = np.frombuffer(offset, np.int64)
            _check_lengths(stored, path, found - HEAD)
            yield found, np.frombuffer(length, np.int64)
            offset, length = array("q"), array("q")


def _check_lengths(stored: Array, path: Path, begins: Index) -> None:
    """Raise CorruptArtifact (``wrong-checksum``) for a record whose length does not match its checksum."""
    for some, heads in runs(stored, begins, HEAD):
        if (wrong := np.flatnonzero(~lengths_are_right(heads))).size:
            raise corrupt(
                path,
                f"the length of a record at byte {begins[some][wrong[0]]}",
                "another checksum",
                kind="wrong-checksum",
            )


def lengths_are_right(heads: Array) -> Array:
    """Return a mask of the record heads, uint8 (records, 12), whose length matches its checksum."""
    expected = np.ascontiguousarray(heads[:, LENGTH.size :]).view("<u4")[:, 0]
    right: Array = masked_rows(heads[:, : LENGTH.size]) == expected
    return right
