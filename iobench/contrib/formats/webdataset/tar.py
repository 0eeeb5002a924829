"""Tar archives: the samples in them, consecutive files of one name up to the first dot, and headers to write.

Supports POSIX.1-1988 (ustar) and POSIX.1-2001 (pax) headers and GNU's long names, as Python's tarfile writes.
"""

from __future__ import annotations

import re
import tarfile
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path, PurePosixPath

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.base.files import name_problem
from iobench.base.text import shortened
from iobench.contrib.formats.shared.mapped_files import Maps, runs
from iobench.contrib.formats.shared.records import Records
from iobench.formats import Array, Index
from iobench.formats.folders import MOST_LOOKS

BLOCK = tarfile.BLOCKSIZE
HEADERS = 1 << 16  # whose checksums are verified together
PIECE = 1 << 20  # samples whose files are listed together, which bounds the memory of a scan
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
        if len(headers) == HEADERS:
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
            if (name[:1] == "/" or ".." in name) and name_problem(str(PurePosixPath(name))):
                problem, hint = (
                    "a name points outside the archive",
                    "pack the files again with relative names",
                )
                raise CorruptArtifact(problem, "unsafe-path", path, found=shortened(name), hint=hint)
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
    problem, hint = "the archive is truncated", "copy it again from its origin"
    return CorruptArtifact(problem, "truncated", path, expected=expected, found=found, hint=hint)


def _not_a_file(path: Path, name: str, found: str) -> CorruptArtifact:
    problem = f"{shortened(name)} cannot hold a sample"
    return CorruptArtifact(problem, "not-a-file", path, expected="a regular file", found=found)


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


@dataclass(frozen=True)
class TarColumn:
    """Offset and size of the files with one suffix, one per sample of a piece in order.

    `varies` is True if sizes differ, in a column of `whole`.
    """

    offset: Index
    size: Index
    varies: bool = False


@dataclass(frozen=True)
class TarPiece(Records):
    """Consecutive samples of one archive, at most PIECE.

    Attributes
    ----------
    columns : mapping
        The files of each suffix that all of them have.
    lacking : mapping
        Of each other suffix, the archive and the key of the first sample without it.
    key : str
        That of the first sample.
    samples : int
        Their number.
    """

    columns: Mapping[str, TarColumn] = field(default_factory=dict)
    lacking: Mapping[str, tuple[Path, str]] = field(default_factory=dict)
    key: str = ""
    samples: int = 0

    def start(self, suffix: str, row: int, most: int) -> memoryview:
        """Return the first bytes of a sample's file, at most so many."""
        begin, size = int(self.columns[suffix].offset[row]), int(self.columns[suffix].size[row])
        return self.maps[int(self.file[row])][begin : begin + min(size, most)].data


def whole(maps: Maps) -> TarPiece:
    """Return the first piece of all archives, with what is known of all: samples, suffixes that all have.

    CorruptArtifact as from `pieces_of`.
    """
    pieces = pieces_of(maps)
    first = next(pieces)
    samples, lacking = first.samples, dict(first.lacking)
    sizes = {suffix: {*_extremes(column)} for suffix, column in first.columns.items()}
    for piece in pieces:
        samples += piece.samples
        known = {*first.columns, *lacking}
        for suffix in known - {*piece.columns, *piece.lacking}:
            lacking.setdefault(suffix, (piece.path(0), piece.key))
        for suffix in {*piece.columns, *piece.lacking} - known:
            lacking[suffix] = first.path(0), first.key
        for suffix, place in piece.lacking.items():
            lacking.setdefault(suffix, place)
        for suffix in sizes.keys() & piece.columns.keys():
            sizes[suffix] |= {*_extremes(piece.columns[suffix])}
    columns = {
        suffix: replace(column, varies=len(sizes[suffix]) > 1)
        for suffix, column in first.columns.items()
        if suffix not in lacking
    }
    if not columns:
        raise _missing(maps, lacking)
    return replace(first, columns=columns, lacking=lacking, samples=samples)


def first_suffixes(maps: Maps) -> tuple[set[str], set[str]]:
    """Return the suffixes of the first sample's files, and the folders of the first members."""
    suffixes, folders, first = set[str](), set[str](), None
    for member in islice(members(maps[0], maps.files[0]), MOST_LOOKS):
        if named := _key_and_suffix(member.name):
            first = first or named[0]
            suffixes |= {named[1]} if named[0] == first else set()
            folders.add(named[0].rpartition("/")[0])
    return suffixes, folders


def _key_and_suffix(name: str) -> tuple[str, str] | None:
    """Return the key of a file's sample, and its suffix; None for files that webdataset skips as well."""
    folder, slash, base = name.rpartition("/")
    stem, _, suffix = base.partition(".")
    if not (stem and suffix) or name.startswith("__"):
        return None
    return folder + slash + stem, suffix.lower()


def _extremes(column: TarColumn) -> tuple[int, int]:
    return int(column.size.min()), int(column.size.max())


def pieces_of(maps: Maps) -> Iterator[TarPiece]:
    """Yield all samples in pieces.

    CorruptArtifact of kind ``missing-files`` if no suffix exists in all samples, ``repeated-file`` if a
    sample has a suffix twice, or an archive is damaged.
    """
    first = 0
    for number in range(len(maps.files)):
        for scanned in _scanned(maps, number):
            yield scanned.whole(first)
            first += scanned.samples
    if not first:
        raise _missing(maps, ())


def _scanned(maps: Maps, number: int) -> Iterator[_Scanned]:
    piece, key = _Scanned(maps, number), None
    for member in members(maps[number], maps.files[number]):
        named = _key_and_suffix(member.name)
        if named is None:
            continue
        if key != named[0]:
            if piece.samples == PIECE:
                yield piece
                piece = _Scanned(maps, number)
            key = named[0]
            piece.begin(key)
        piece.add(named[1], member)
    if piece.samples:
        yield piece


class _Scanned:
    def __init__(self, maps: Maps, number: int) -> None:
        self.samples = 0
        self._maps, self._number, self._path = maps, number, maps.files[number]
        self._columns: dict[str, tuple[array[int], array[int]]] = {}
        self._lacking: dict[str, tuple[Path, str]] = {}

    def begin(self, key: str) -> None:
        """Begin the next sample."""
        if self.samples:
            self._end()
        else:
            self._key = key
        self._newest = key
        self.samples += 1

    def add(self, suffix: str, member: TarMember) -> None:
        """Add a file of the newest sample, unless an earlier sample lacks this suffix."""
        if suffix not in self._columns:
            self._columns[suffix] = array("q"), array("q")
        offset, size = self._columns[suffix]
        if len(offset) == self.samples:
            problem = f"sample {self._newest} has two files .{suffix}"
            raise CorruptArtifact(problem, "repeated-file", self._path, hint="give each sample another key")
        if len(offset) == self.samples - 1:
            offset.append(member.offset)
            size.append(member.size)

    def whole(self, first: int) -> TarPiece:
        """Return the piece behind so many samples; CorruptArtifact if no suffix exists in all of its own."""
        self._end()
        columns = {
            suffix: TarColumn(np.frombuffer(offset, np.int64), np.frombuffer(size, np.int64))
            for suffix, (offset, size) in self._columns.items()
            if suffix not in self._lacking
        }
        if not columns:
            raise _missing(self._maps, self._columns)
        file, one = np.full(self.samples, self._number), next(iter(columns.values()))
        places = (self._maps, file, one.offset, one.size, first)
        return TarPiece(*places, columns, self._lacking, self._key, self.samples)

    def _end(self) -> None:
        """Note which suffixes the newest sample lacks."""
        for suffix, (offset, _) in self._columns.items():
            if len(offset) < self.samples:
                self._lacking.setdefault(suffix, (self._path, self._newest if offset else self._key))


def _missing(maps: Maps, suffixes: Iterable[str]) -> CorruptArtifact:
    return CorruptArtifact(
        "no suffix exists in all samples",
        kind="missing-files",
        path=maps.files[0].parent,
        expected="samples with the same files each",
        found=", ".join(f".{suffix}" for suffix in sorted(suffixes)[:9]) or "no samples",
    )


class TarHeaders:
    """Template of headers for files whose names differ only in a number.

    `name` has `@` in place of each digit of the number; `size` are the bytes of each file, 0 if they differ.
    `blocks` are the headers as tarfile writes them, with zeros for the digits.
    """

    def __init__(self, name: str, size: int) -> None:
        info = tarfile.TarInfo(name)
        info.size = size
        made = info.tobuf(tarfile.PAX_FORMAT)
        self._width = name.count("@")
        self._digits = [match.start() for match in re.finditer(f"@{{{self._width}}}".encode(), made)]
        self._headers = [at for at in range(0, len(made), BLOCK) if is_tar(made[at : at + BLOCK])]
        self.blocks = made.replace(DIGIT, b"0")

    def number(self, table: Array, begin: int, rows: Index, sizes: Index | None = None) -> None:
        """Write sample numbers into the headers at byte `begin` of each row of a table.

        Sizes that differ are written, too, each at most MOST_BYTES.
        """
        headers = table[:, begin : begin + len(self.blocks)]
        for place in self._digits:
            headers[:, place : place + self._width] = _digits(rows, 10, self._width)
        if sizes is not None:
            headers[:, len(self.blocks) - BLOCK :][:, SIZE] = _digits(sizes, 8, SIZE.stop - SIZE.start)
        for at in self._headers:
            block = headers[:, at : at + BLOCK]
            block[:, CHECKSUM] = ord(" ")
            sums = block.sum(1, np.int64)
            block[:, CHECKSUM.start : CHECKSUM.start + 7] = 0
            block[:, CHECKSUM.start : CHECKSUM.start + 6] = _digits(sums, 8, 6)


def _digits(values: Index, base: int, width: int) -> Array:
    """Return the last digits of each value in ASCII, int64 (values, width)."""
    digits: Array = values[:, None] // base ** np.arange(width - 1, -1, -1) % base + ord("0")
    return digits
