"""Tar archives: scan for the offsets of the files, and headers for many files at once.

Supports POSIX.1-1988 (ustar) and POSIX.1-2001 (pax) headers and GNU's long names, as Python's tarfile writes.
"""

from __future__ import annotations

import tarfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.base.text import shortened
from iobench.contrib.formats.shared.placed_reader import runs
from iobench.formats import Array, Index

BLOCK = tarfile.BLOCKSIZE
PIECE = 1 << 16  # headers whose checksums are verified together
MAGIC_AT, MAGIC = 257, b"ustar"
SIZE, CHECKSUM = slice(124, 135), slice(148, 156)
END = bytes(2 * BLOCK)
DIGIT = b"@"  # placeholder for a digit of a sample's number in a name
MOST_BYTES = 8**11 - 1  # of a file, in the digits of a header
MOST_DIGITS = 18  # of a number in a pax header
LONGEST_NAME = 1 << 16  # bytes read of a header that holds a name
LINKS = {b"1": "a hard link", b"2": "a symbolic link", b"S": "a sparse file"}


@dataclass(frozen=True)
class TarMember:
    """A regular file in an archive: its name, and offset and size of its content."""

    name: str
    offset: int
    size: int


@dataclass
class _Long:
    """Name and size that an extended header gives to the next member."""

    name: str | None = None
    size: int | None = None


def is_tar(start: bytes) -> bool:
    """Return True if a file that begins with these bytes looks like an archive."""
    return start[MAGIC_AT : MAGIC_AT + len(MAGIC)] == MAGIC


def members(stored: Array, path: Path) -> Iterator[TarMember]:
    """Yield every regular file of an archive, in order.

    CorruptArtifact if a header is damaged (``wrong-checksum`` if only its checksum differs), or of kind
    ``truncated``, ``not-a-file`` (a link, a sparse file or another member type) or ``unsafe-path``.
    """
    data, place, long = stored.data, 0, _Long()
    headers = array("q")
    while True:
        header = bytes(data[place : place + BLOCK])
        if header[:1] in (b"\0", b""):
            break
        headers.append(place)
        if len(headers) == PIECE:
            _check_sums(stored, headers, path)
            headers = array("q")
        kind, size, begin = header[156:157], _size(header, path, place), place + BLOCK
        place = begin + -(-size // BLOCK) * BLOCK
        if place > len(data):
            # with a wrong checksum the size is not to be trusted, and the archive may be complete
            _check_sums(stored, headers, path)
            whole = f"{size:,} bytes of {shortened(long.name or _name(header))}"
            raise _truncated(path, whole, f"{max(0, len(data) - begin):,}")
        if kind in (b"0", b"\0", b"7"):
            size = size if long.size is None else long.size
            name = long.name or _name(header)
            _refuse_outside(name, path)
            place = begin + -(-size // BLOCK) * BLOCK
            yield TarMember(name, begin, size)
            long = _Long()
        elif kind == b"5":
            long = _Long()  # an extended header before it was the folder's
        elif kind in (b"x", b"L"):
            _read_long(long, kind, bytes(data[begin : begin + min(size, LONGEST_NAME)]), path)
        elif kind not in (b"g", b"K"):
            raise _not_a_file(path, _name(header), LINKS.get(kind, f"a member of type {kind!r}"))
    if bytes(data[place : place + len(END)]) != END:
        raise _truncated(path, "two empty blocks at its end", "no such end")
    _check_sums(stored, headers, path)


def _truncated(path: Path, expected: str, found: str) -> CorruptArtifact:
    return CorruptArtifact(
        "the archive is truncated",
        kind="truncated",
        path=path,
        expected=expected,
        found=found,
        hint="copy it again from its origin",
    )


def _not_a_file(path: Path, name: str, found: str) -> CorruptArtifact:
    return CorruptArtifact(
        f"{shortened(name)} cannot hold a sample",
        kind="not-a-file",
        path=path,
        expected="a regular file",
        found=found,
    )


def _size(header: bytes, path: Path, place: int) -> int:
    if 0 < len(header) < BLOCK:
        raise _truncated(path, f"the header of a file at byte {place}", f"{len(header)} bytes of it")
    if len(header) < BLOCK or not is_tar(header):
        raise corrupt(path, f"the header of a file at byte {place}", "none")
    try:
        size: int = tarfile.nti(header[124:136])  # type: ignore[attr-defined]  # the shape of numbers in headers
    except tarfile.HeaderError as error:
        raise corrupt(path, f"the size of a file at byte {place}", error) from error
    if size < 0:
        raise corrupt(path, f"the size of a file at byte {place}", size)
    return size


def _name(header: bytes) -> str:
    name, prefix = (header[part].partition(b"\0")[0] for part in (slice(0, 100), slice(345, 500)))
    return (prefix + b"/" + name if prefix else name).decode("utf-8", "replace")


def _refuse_outside(name: str, path: Path) -> None:
    if name[:1] == "/" or (".." in name and ".." in PurePosixPath(name).parts):
        raise CorruptArtifact(
            "a name points outside the archive",
            kind="unsafe-path",
            path=path,
            found=shortened(name),
            hint="pack the files again with relative names",
        )


def _read_long(long: _Long, kind: bytes, content: bytes, path: Path) -> None:
    """Read name and size from a pax header or a GNU long name of the next member."""
    if kind == b"L":
        long.name = content.partition(b"\0")[0].decode("utf-8", "replace")
        return
    while content:
        digits, _, rest = content.partition(b" ")
        length = int(digits) if digits.isdigit() and len(digits) <= MOST_DIGITS else 0
        key, equals, value = rest[: max(0, length - len(digits) - 2)].partition(b"=")
        if not equals or length > len(content):
            raise corrupt(path, "a pax header", content[:20])
        if key == b"path":
            long.name = value.decode("utf-8", "replace")
        elif key == b"size" and value.isdigit() and len(value) <= MOST_DIGITS:
            long.size = int(value)
        elif key.startswith(b"GNU.sparse"):
            raise _not_a_file(path, long.name or "a member", LINKS[b"S"])
        content = content[length:]


def _check_sums(stored: Array, headers: array[int], path: Path) -> None:
    """Raise CorruptArtifact (``wrong-checksum``) if the checksum of a header is wrong."""
    for some, blocks in runs(stored, np.frombuffer(headers, np.int64), BLOCK):
        sums = blocks.sum(1, np.int64) - blocks[:, CHECKSUM].sum(1, np.int64) + 8 * ord(" ")
        digits = blocks[:, CHECKSUM.start : CHECKSUM.start + 6].astype(np.int64)
        digits[(digits == ord(" ")) | (digits == 0)] = ord("0")  # some programs pad with spaces
        recorded = ((digits - ord("0")) * 8 ** np.arange(5, -1, -1)).sum(1)
        if (wrong := np.flatnonzero(recorded != sums)).size:
            place = int(headers[some][wrong[0]])
            raise corrupt(
                path,
                f"checksum {sums[wrong[0]]} of the header at byte {place}",
                recorded[wrong[0]],
                kind="wrong-checksum",
            )


@dataclass
class TarHeaders:
    """Template of headers for files whose names differ only in a number."""

    name: str  # name with `@` in place of each digit of the number
    size: int  # bytes of each file; 0 if they differ
    blocks: bytes = b""  # the headers as tarfile writes them, with zeros for the digits
    _digits: list[int] = field(default_factory=list)
    _sums: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        info = tarfile.TarInfo(self.name)
        info.size = self.size
        made = info.tobuf(tarfile.PAX_FORMAT)
        run = DIGIT * self.name.count("@")
        place = made.find(run)
        while place >= 0:
            self._digits.append(place)
            place = made.find(run, place + 1)
        self.blocks = made.replace(run, b"0" * len(run))
        for place in self._digits:
            block = place // BLOCK * BLOCK
            if is_tar(self.blocks[block : block + BLOCK]):
                content = bytearray(self.blocks[block : block + BLOCK])
                content[CHECKSUM] = b" " * 8
                self._sums[block] = sum(content)

    def number(self, table: Array, begin: int, rows: Index, sizes: Index | None = None) -> None:
        """Write sample numbers into the headers at byte `begin` of each row of a table.

        Sizes that differ are written, too, each at most MOST_BYTES.
        """
        width = self.name.count("@")
        digits = (rows[:, None] // 10 ** np.arange(width - 1, -1, -1)) % 10
        for place in self._digits:
            table[:, begin + place : begin + place + width] = digits + ord("0")
        last = len(self.blocks) - BLOCK
        octal = _octal(np.zeros(1, np.int64) if sizes is None else sizes, SIZE.stop - SIZE.start)
        if sizes is not None:
            table[:, begin + last + SIZE.start : begin + last + SIZE.stop] = octal + ord("0")
        for block, empty in self._sums.items():
            sums = _octal(empty + digits.sum(1) + (octal.sum(1) if block == last else 0), 6)
            table[:, begin + block + CHECKSUM.start : begin + block + CHECKSUM.start + 6] = sums + ord("0")
            table[:, begin + block + CHECKSUM.start + 6] = 0
            table[:, begin + block + CHECKSUM.start + 7] = ord(" ")


def _octal(values: Index, width: int) -> Array:
    """Return the last octal digits of each value, int64 (values, width)."""
    digits: Array = values[:, None] // 8 ** np.arange(width - 1, -1, -1) % 8
    return digits
