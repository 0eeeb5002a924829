"""The pages of an LMDB file, checked before the library maps them: it aborts the process on some damage.

Layout of data version 1, 64 bits, little-endian, as LMDB's source (mdb.c) declares it:

page    number u64, pad u16, kind u16, lower u16, upper u16; then an offset u16 per node, up to `lower`;
        the nodes lie from `upper` to the end
node    u16 × 4: of a leaf the value's bytes (two words), flags, the key's bytes; of a branch the child's
        page (three words), the key's bytes. Then the key, then the value, or with flag 1 the number of
        the first of the pages that hold it alone, after a page header
meta    pages 0 and 1; the one with the higher transaction counts

Values are not read, nor are the headers of pages that hold a value alone, which the library ignores.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.formats._errors import corrupt

HEADER_BYTES, NODE_BYTES, NUMBER_BYTES = 16, 8, 8
BRANCH, LEAF, META = 1, 2, 8
ALONE = 1  # the flag of a value in pages of its own
MAGIC, VERSION = 0xBEEFC0DE, 1
INTEGER_KEYS, ONE_FILE = 8, 0x4000  # the flags of the tree of free pages, the second of an environment
MOST_LEVELS = 32
PIECE_BYTES = 1 << 20  # of pages looked at together: what stays in the processor's cache

Numbers = npt.NDArray[np.int64]

_TREE = np.dtype(
    [
        ("page_bytes", "<u4"),
        ("flags", "<u2"),
        ("depth", "<u2"),
        ("branches", "<u8"),
        ("leaves", "<u8"),
        ("alone", "<u8"),
        ("entries", "<u8"),
        ("root", "<u8"),
    ]
)
_META = np.dtype(
    [
        ("number", "<u8"),
        ("pad", "<u2"),
        ("kind", "<u2"),
        ("bounds", "<u4"),
        ("magic", "<u4"),
        ("version", "<u4"),
        ("address", "<u8"),
        ("map_bytes", "<u8"),
        ("free", _TREE),
        ("main", _TREE),
        ("last", "<u8"),
        ("transaction", "<u8"),
    ]
)


@dataclass(frozen=True)
class Meta:
    """Where the tree begins: page size, number of the last page, the root's number, levels, entries."""

    page_bytes: int
    last: int
    root: int
    depth: int
    entries: int


def read_meta(path: Path) -> Meta:
    """The meta page that counts, checked against the file's size; CorruptArtifact where it cannot be."""
    if not path.is_file():
        raise corrupt(path, "an LMDB environment", "no such file")
    with open(path, "rb", buffering=0) as file:
        return _read_meta(path, file.fileno())


def check(path: Path, samples: int, last_key: bytes) -> None:
    """Walk the whole tree; CorruptArtifact where a page is damaged or a key is not where it belongs.

    Where the last key is `last_key`, the others must be the rows 0..samples-1 as 8 bytes, big-endian; else
    others wrote the file, and may have other keys. Reads every branch and leaf page once, by plain reads,
    so that a read error of the disk is an OSError.
    """
    meta = read_meta(path)
    with open(path, "rb", buffering=0) as file:
        _Tree(path, file.fileno(), meta, samples, last_key).check()


def values(path: Path, samples: int, last_key: bytes) -> tuple[Numbers, Numbers]:
    """The byte offset and the size of each row's value, found and checked by walking the tree as `check`."""
    meta = read_meta(path)
    with open(path, "rb", buffering=0) as file:
        tree = _Tree(path, file.fileno(), meta, samples, last_key)
        tree.values = []
        tree.check()
    offsets, sizes = (np.concatenate(found)[:samples] for found in zip(*tree.values, strict=True))
    return offsets, sizes


def _read_meta(path: Path, descriptor: int) -> Meta:
    first = _one_meta(path, descriptor, 0, 0)
    page_bytes = int(first["free"]["page_bytes"])
    if not (256 <= page_bytes <= 1 << 15 and page_bytes & (page_bytes - 1) == 0):
        raise corrupt(path, "pages of 256 to 32768 bytes", page_bytes)
    second = _one_meta(path, descriptor, 1, page_bytes)
    if second["free"]["page_bytes"] != page_bytes:
        raise corrupt(path, f"pages of {page_bytes} bytes", int(second["free"]["page_bytes"]))
    counts = second if second["transaction"] > first["transaction"] else first
    tree, last, size = counts["main"], int(counts["last"]), os.fstat(descriptor).st_size
    if size < (last + 1) * page_bytes:  # reading past the end of a mapped file would kill the process
        raise corrupt(path, f"at least {(last + 1) * page_bytes} bytes", f"{size} bytes")
    if tree["flags"] or counts["free"]["flags"] not in (INTEGER_KEYS, INTEGER_KEYS | ONE_FILE):
        raise corrupt(path, "a tree of single values", f"flags {tree['flags']}, {counts['free']['flags']}")
    return Meta(page_bytes, last, *(int(tree[name]) for name in ("root", "depth", "entries")))


def _one_meta(path: Path, descriptor: int, number: int, offset: int) -> Any:
    found = os.pread(descriptor, _META.itemsize, offset)
    if len(found) < _META.itemsize:
        raise corrupt(path, f"meta page {number}", f"{offset + len(found)} bytes in all")
    meta = np.frombuffer(found, _META)[0]
    seen = tuple(int(meta[name]) for name in ("number", "kind", "magic", "version"))
    if seen != (number, META, MAGIC, VERSION):
        raise corrupt(path, f"LMDB's meta page {number} of data version {VERSION}", seen)
    return meta


@dataclass
class _Tree:
    path: Path
    descriptor: int
    meta: Meta
    samples: int
    last_key: bytes
    claims: list[tuple[Numbers, Numbers]] = field(default_factory=list)  # first and past the last page
    values: list[tuple[Numbers, Numbers]] | None = None  # offset and size, if wanted

    def check(self) -> None:
        if not 1 <= self.meta.depth <= MOST_LEVELS:
            raise self.damaged("page 0 or 1", f"1 to {MOST_LEVELS} levels", self.meta.depth)
        numbers, rows = np.array([self.meta.root], np.uint64).astype(np.int64), np.zeros(1, np.int64)
        for _ in range(self.meta.depth - 1):
            self.claim(numbers, numbers + 1)
            numbers, rows = self.below(numbers, rows)
        self.claim(numbers, numbers + 1)
        self.check_leaves(numbers, rows)

    def below(self, numbers: Numbers, rows: Numbers) -> tuple[Numbers, Numbers]:
        """The children of branch pages in order, and the row that each must begin with."""
        children, begins = [], []
        for low, pages in self.pieces(numbers):
            nodes = _Nodes(self, pages, numbers[low : low + len(pages)], BRANCH)
            nodes.check_ends(nodes.starts + NODE_BYTES + nodes.key_bytes)
            # the first key of a branch page is never looked at, and may be empty
            first = np.flatnonzero(np.diff(nodes.pages, prepend=-1))
            begin = nodes.rows()
            begin[first] = rows[low : low + len(pages)]
            children.append((nodes.headers & np.uint64(0xFFFFFFFFFFFF)).astype(np.int64))
            begins.append(begin)
        return np.concatenate(children), np.concatenate(begins)

    def check_leaves(self, numbers: Numbers, rows: Numbers) -> None:
        row, alone, problem, ends_as_ours = 0, [], None, False
        for low, pages in self.pieces(numbers):
            nodes = _Nodes(self, pages, numbers[low : low + len(pages)], LEAF)
            found = nodes.rows()
            wrong = found != np.arange(row, row + len(found))
            first = np.flatnonzero(np.diff(nodes.pages, prepend=-1))
            wrong[first] |= found[first] != rows[low : low + len(pages)]
            if wrong.any() and problem is None:
                problem = nodes.complaint(wrong, "the keys of the rows in order", "another key")
            alone.append(nodes.values_alone())
            if self.values is not None:
                self.values.append(nodes.values())
            row, ends_as_ours = row + len(found), bool(found[-1] == self.samples)
        if problem is None and row != self.samples + 1:
            problem = corrupt(self.path, f"{self.samples} samples", row - 1)
        if problem is not None and ends_as_ours:
            raise problem
        if problem is not None and row != self.meta.entries:
            raise corrupt(self.path, f"{self.meta.entries} keys", row)
        self.claim(*(np.concatenate(ends) for ends in zip(*alone, strict=True)))

    def claim(self, first: Numbers, stop: Numbers) -> None:
        """Note which pages are used; each may be used once, and must be one of the file's."""
        wrong = (first < 2) | (stop > self.meta.last + 1) | (stop <= first)
        if wrong.any():
            raise self.damaged("a page number", f"2 to {self.meta.last}", int(first[wrong.argmax()]))
        self.claims.append((first, stop))
        firsts, stops = (np.concatenate(ends) for ends in zip(*self.claims, strict=True))
        order = np.argsort(firsts)
        twice = stops[order][:-1] > firsts[order][1:]
        if twice.any():
            raise self.damaged(f"page {firsts[order][1:][twice.argmax()]}", "one use of it", "several")

    def pieces(self, numbers: Numbers) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        """Some of the pages after others, by the index of their first; the next take the place of these."""
        size = self.meta.page_bytes
        step = max(1, PIECE_BYTES // size)
        # 8 bytes more, so that any node's key can be looked at as 8 bytes
        memory = np.zeros(min(step, len(numbers)) * size + 8, np.uint8)
        for low in range(0, len(numbers), step):
            some = numbers[low : low + step]
            pages = memory[: len(some) * size].reshape(-1, size)
            runs = [0, *(np.flatnonzero(np.diff(some) != 1) + 1).tolist(), len(some)]
            for begin, end in itertools.pairwise(runs):
                self.read(int(some[begin]) * size, pages[begin:end].reshape(-1))
            yield low, pages

    def read(self, offset: int, into: npt.NDArray[np.uint8]) -> None:
        done = 0
        while done < len(into):
            got = os.preadv(self.descriptor, [into[done:].data], offset + done)
            if not got:
                raise corrupt(self.path, f"at least {offset + len(into)} bytes", f"{offset + done} bytes")
            done += got

    def damaged(self, where: str, expected: object, found: object) -> Exception:
        return corrupt(self.path, f"in {where} {expected}", found)


class _Nodes:
    """The nodes of some pages of one kind, in order: their pages, offsets, headers and key sizes."""

    def __init__(self, tree: _Tree, pages: npt.NDArray[np.uint8], numbers: Numbers, kind: int) -> None:
        self.tree, self.numbers, self.size = tree, numbers, tree.meta.page_bytes
        words = pages.view("<u2")
        lower, upper = words[:, 6].astype(np.int64), words[:, 7].astype(np.int64)
        counts = (lower - HEADER_BYTES) // 2
        least = 2 if kind == BRANCH else 1
        self._complain(pages.view("<u8")[:, 0] != numbers.view(np.uint64), "its own number", "another")
        self._complain(words[:, 5] != kind, f"kind {kind}", "another")
        self._complain(
            (counts < least) | (lower % 2 != 0) | (lower > upper) | (upper > self.size),
            f"{least} nodes or more within it",
            "other bounds",
        )
        self.pages = np.repeat(np.arange(len(pages)), counts)
        place = np.arange(len(self.pages)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.starts = words[self.pages, HEADER_BYTES // 2 + place].astype(np.int64)
        self.complain(
            (self.starts < upper[self.pages])
            | (self.starts > self.size - NODE_BYTES)
            | (self.starts % 2 != 0),
            "nodes within it",
            "one elsewhere",
        )
        base: Any = pages.base  # the memory that holds them and 8 bytes more
        self._words: npt.NDArray[np.uint64] = np.ndarray((base.size // 2 - 3,), "<u8", base, strides=(2,))
        self.headers = self.words(0)
        self.key_bytes = (self.headers >> np.uint64(48)).astype(np.int64)

    def words(self, offset: int | Numbers) -> npt.NDArray[np.uint64]:
        """The 8 bytes of each node at an even offset in it."""
        found: npt.NDArray[np.uint64] = self._words[(self.pages * self.size + self.starts + offset) // 2]
        return found

    def rows(self) -> Numbers:
        """The row that each key stands for, the number of samples for the last key, -1 for others."""
        key, last = self.words(NODE_BYTES), self.tree.last_key
        rows = np.where(self.key_bytes == 8, key.byteswap().view(np.int64), -1)
        mask = np.uint64((1 << 8 * len(last)) - 1)
        is_last = (self.key_bytes == len(last)) & (key & mask == np.uint64(int.from_bytes(last, "little")))
        rows[is_last] = self.tree.samples
        return rows

    def values_alone(self) -> tuple[Numbers, Numbers]:
        """The first page, and that past the last, of each value with pages of its own; all values checked."""
        flags = (self.headers >> np.uint64(32)) & np.uint64(0xFFFF)
        self.complain(flags > ALONE, "plain values", f"flags {int(flags.max(initial=0))}")
        value, begin = (self.headers & np.uint64(0xFFFFFFFF)).astype(np.int64), NODE_BYTES + self.key_bytes
        alone = flags == ALONE
        self.check_ends(self.starts + begin + np.where(alone, NUMBER_BYTES, value))
        odd = (begin % 2).astype(np.uint64)  # behind a key of an odd length, where no word begins
        first = (self.words(begin - begin % 2) >> (np.uint64(8) * odd))[alone].astype(np.int64)
        return first, first + (HEADER_BYTES - 1 + value[alone]) // self.size + 1

    def values(self) -> tuple[Numbers, Numbers]:
        """The offset in the file and the size of each value."""
        size, begin = (self.headers & np.uint64(0xFFFFFFFF)).astype(np.int64), NODE_BYTES + self.key_bytes
        beside = self.numbers[self.pages] * self.size + self.starts + begin
        apart = self.words(begin).astype(np.int64) * self.size + HEADER_BYTES
        flags = (self.headers >> np.uint64(32)) & np.uint64(0xFFFF)
        return np.where(flags == ALONE, apart, beside), size

    def check_ends(self, ends: Numbers) -> None:
        """Complain of nodes that go on past their page."""
        self.complain(ends > self.size, "nodes within it", "one that goes on")

    def complain(self, wrong: npt.NDArray[np.bool_], expected: str, found: str) -> None:
        """CorruptArtifact for the page of the first node of which this is true."""
        if wrong.any():
            raise self.complaint(wrong, expected, found)

    def complaint(self, wrong: npt.NDArray[np.bool_], expected: str, found: str) -> Exception:
        """The CorruptArtifact for the page of the first node of which this is true."""
        return self.tree.damaged(f"page {self.numbers[self.pages[wrong.argmax()]]}", expected, found)

    def _complain(self, wrong: npt.NDArray[np.bool_], expected: str, found: str) -> None:
        if wrong.any():
            raise self.tree.damaged(f"page {self.numbers[wrong.argmax()]}", expected, found)
