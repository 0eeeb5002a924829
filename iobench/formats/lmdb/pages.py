"""The pages of an LMDB file, read without its library: meta pages, nodes, the tree's check, lookup of keys.

Pages 0 and 1 of data version 1, 64 bits, little-endian, as LMDB's source (mdb.c) declares them, hold the root
of the tree. The one with the higher transaction number is valid.
"""

from __future__ import annotations

import itertools
import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.base.files import regular

META = 8
MAGIC, VERSION = 0xBEEFC0DE, 1
INTEGER_KEYS, ONE_FILE = 8, 0x4000  # the flags of the tree of free pages, the second of an environment


def _record(**fields: Any) -> np.dtype[Any]:
    return np.dtype([*fields.items()])


_SIZES = dict.fromkeys(("branches", "leaves", "alone", "entries", "root"), "<u8")
_TREE = _record(page_bytes="<u4", flags="<u2", depth="<u2", **_SIZES)
_HEAD = {"number": "<u8", "pad": "<u2", "kind": "<u2", "bounds": "<u4", "magic": "<u4", "version": "<u4"}
_BEHIND = {"address": "<u8", "map_bytes": "<u8", "free": _TREE, "main": _TREE, "last": "<u8"}
_META = _record(**_HEAD, **_BEHIND, transaction="<u8")


@dataclass(frozen=True)
class Meta:
    """Page size, number of the last page and of the root, and the tree's levels and entries."""

    page_bytes: int
    last: int
    root: int
    depth: int
    entries: int


def begins(path: Path) -> bool:
    """Return True if a file begins with LMDB's first meta page; OSError if it cannot be read."""
    with open(regular(path), "rb", buffering=0) as file:
        try:
            _one_meta(path, file.fileno(), 0, 0)
        except CorruptArtifact:
            return False
    return True


def read_meta(path: Path) -> Meta:
    """Return the valid meta page; CorruptArtifact if it is damaged or exceeds the file's size."""
    if not path.is_file():
        raise corrupt(path, "an LMDB environment", "no such file")
    with open(path, "rb", buffering=0) as file:
        first, size = _one_meta(path, file.fileno(), 0, 0), os.fstat(file.fileno()).st_size
        page_bytes = int(first["free"]["page_bytes"])
        if not (256 <= page_bytes <= 1 << 15 and page_bytes & (page_bytes - 1) == 0):
            raise corrupt(path, "pages of 256 to 32768 bytes", page_bytes)
        second = _one_meta(path, file.fileno(), 1, page_bytes)
    if second["free"]["page_bytes"] != page_bytes:
        raise corrupt(path, f"pages of {page_bytes} bytes", int(second["free"]["page_bytes"]))
    valid = second if second["transaction"] > first["transaction"] else first
    tree, last = valid["main"], int(valid["last"])
    if size < (last + 1) * page_bytes:  # reading past the end of a mapped file kills the process
        raise corrupt(path, f"at least {(last + 1) * page_bytes} bytes", f"{size} bytes", kind="truncated")
    if tree["flags"] or valid["free"]["flags"] not in (INTEGER_KEYS, INTEGER_KEYS | ONE_FILE):
        raise corrupt(path, "a tree of single values", f"flags {tree['flags']}, {valid['free']['flags']}")
    if tree["entries"] > size // NODE_BYTES:
        raise corrupt(path, f"at most {size // NODE_BYTES} keys", int(tree["entries"]))
    return Meta(page_bytes, last, *(int(tree[name]) for name in ("root", "depth", "entries")))


def _one_meta(path: Path, descriptor: int, number: int, offset: int) -> Any:
    stored = os.pread(descriptor, _META.itemsize, offset)
    if len(stored) < _META.itemsize:
        raise corrupt(path, f"meta page {number}", f"{offset + len(stored)} bytes in all", kind="truncated")
    meta = np.frombuffer(stored, _META)[0]
    identity = tuple(int(meta[name]) for name in ("number", "kind", "magic", "version"))
    if identity != (number, META, MAGIC, VERSION):
        raise corrupt(path, f"LMDB's meta page {number} of data version {VERSION}", identity)
    return meta


HEADER_BYTES, NODE_BYTES, NUMBER_BYTES = 16, 8, 8
BRANCH, LEAF = 1, 2
OVERFLOW = 1  # flag of a value in overflow pages
EMPTY_LEAF = struct.pack("<QHHHH4080x", 0, 0, LEAF, HEADER_BYTES, 4096)  # a page without keys
BEHIND = 8  # bytes of memory after the pages, see `Nodes`

Numbers = npt.NDArray[np.int64]


class Nodes:
    """The nodes of some pages of one kind, in order: their pages, offsets, headers and key sizes.

    `pages`, uint8, has one page per row; its memory continues for 8 bytes, so that any node's key can be read
    as 8 bytes. `numbers` are those of the pages in the file, `kind` is `BRANCH` or `LEAF`.

    CorruptArtifact (``damaged-page``) if a page has another number or kind, or a node is not within its page.
    """

    def __init__(self, path: Path, pages: npt.NDArray[np.uint8], numbers: Numbers, kind: int) -> None:
        self._path, self._numbers, self._size = path, numbers, pages.shape[1]
        words = pages.view("<u2")
        lower, upper = words[:, 6].astype(np.int64), words[:, 7].astype(np.int64)
        counts = (lower - HEADER_BYTES) // 2
        least = 2 if kind == BRANCH else 1
        self._refuse_pages(pages.view("<u8")[:, 0] != numbers.view(np.uint64), "its own number", "another")
        self._refuse_pages(words[:, 5] != kind, f"kind {kind}", "another")
        self._refuse_pages(
            (counts < least) | (lower % 2 != 0) | (lower > upper) | (upper > self._size),
            f"{least} nodes or more within it",
            "other bounds",
        )
        self.pages = np.repeat(np.arange(len(pages)), counts)
        place = np.arange(len(self.pages)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.starts = words[self.pages, HEADER_BYTES // 2 + place].astype(np.int64)
        self.refuse(
            (self.starts < upper[self.pages])
            | (self.starts > self._size - NODE_BYTES)
            | (self.starts % 2 != 0),
            "nodes within it",
            "one elsewhere",
        )
        base: Any = pages.base  # the pages' memory and the 8 bytes after it
        self._bytes: npt.NDArray[np.uint8] = base
        self._words: npt.NDArray[np.uint64] = np.ndarray((base.size // 2 - 3,), "<u8", base, strides=(2,))
        self.headers = self.words(0)
        self.key_bytes = (self.headers >> np.uint64(48)).astype(np.int64)

    def words(self, offset: int | Numbers) -> npt.NDArray[np.uint64]:
        """Return 8 bytes of each node, at an even offset in it."""
        words: npt.NDArray[np.uint64] = self._words[(self.pages * self._size + self.starts + offset) // 2]
        return words

    def keys(self) -> list[bytes]:
        """Return the key of each node; CorruptArtifact if one ends after its page."""
        self.check_key_ends()
        begins = self.starts + NODE_BYTES + self.pages * self._size
        whole, ends = self._bytes.tobytes(), begins + self.key_bytes
        return [whole[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]

    def rows(self, samples: int, last: bytes) -> Numbers:
        """Return the row of each key; the number of samples for the key `last`, -1 for others."""
        key = self.words(NODE_BYTES)
        rows = np.where(self.key_bytes == 8, key.byteswap().view(np.int64), -1)
        mask = np.uint64((1 << 8 * len(last)) - 1)
        is_last = (self.key_bytes == len(last)) & (key & mask == np.uint64(int.from_bytes(last, "little")))
        rows[is_last] = samples
        return rows

    def children(self) -> Numbers:
        """Return the child page of each node of branch pages."""
        pages: Numbers = (self.headers & np.uint64(0xFFFFFFFFFFFF)).astype(np.int64)
        return pages

    def firsts(self) -> Numbers:
        """Return the index of each page's first node."""
        return np.flatnonzero(np.diff(self.pages, prepend=-1))

    def overflow_pages(self) -> tuple[Numbers, Numbers]:
        """Check all values; return the first and past-the-last overflow page of each that has some."""
        flags, size, begin = self._value_headers()
        self.refuse(flags > OVERFLOW, "plain values", f"flags {int(flags.max(initial=0))}")
        overflow = flags == OVERFLOW
        self.check_ends(self.starts + begin + np.where(overflow, NUMBER_BYTES, size))
        first = self._page_at(begin)[overflow]
        return first, first + (HEADER_BYTES - 1 + size[overflow]) // self._size + 1

    def values(self) -> tuple[Numbers, Numbers]:
        """Return the file offset and the size of each value."""
        flags, size, begin = self._value_headers()
        inline = self._numbers[self.pages] * self._size + self.starts + begin
        separate = self._page_at(begin) * self._size + HEADER_BYTES
        return np.where(flags == OVERFLOW, separate, inline), size

    def _value_headers(self) -> tuple[npt.NDArray[np.uint64], Numbers, Numbers]:
        """Return the flags of each node, the size of its value, and where that begins in the node."""
        flags = (self.headers >> np.uint64(32)) & np.uint64(0xFFFF)
        return flags, (self.headers & np.uint64(0xFFFFFFFF)).astype(np.int64), NODE_BYTES + self.key_bytes

    def _page_at(self, begin: Numbers) -> Numbers:
        """Return the page number in each node, after a key that may have an odd length."""
        odd = (begin % 2).astype(np.uint64)
        pages: Numbers = (self.words(begin - begin % 2) >> (np.uint64(8) * odd)).astype(np.int64)
        return pages

    def check_key_ends(self) -> None:
        """Raise CorruptArtifact if a key ends after its page."""
        self.check_ends(self.starts + NODE_BYTES + self.key_bytes)

    def check_ends(self, ends: Numbers) -> None:
        """Raise CorruptArtifact if a node ends after its page."""
        self.refuse(ends > self._size, "nodes within it", "one past its end")

    def refuse(self, wrong: npt.NDArray[np.bool_], expected: str, found: str) -> None:
        """Raise CorruptArtifact for the page of the first node with a true entry in `wrong`."""
        if wrong.any():
            raise self.error(wrong, expected, found)

    def error(self, wrong: npt.NDArray[np.bool_], expected: str, found: str) -> Exception:
        """Return the CorruptArtifact for the page of the first node with a true entry in `wrong`."""
        return self._damaged(self._numbers[self.pages[wrong.argmax()]], expected, found)

    def _refuse_pages(self, wrong: npt.NDArray[np.bool_], expected: str, found: str) -> None:
        if wrong.any():
            raise self._damaged(self._numbers[wrong.argmax()], expected, found)

    def _damaged(self, number: int, expected: str, found: str) -> Exception:
        return corrupt(self._path, f"in page {number} {expected}", found, kind="damaged-page")


MOST_LEVELS = 32
PIECE_BYTES = 1 << 20  # of pages that are decoded together, so that they fit in the L2 cache


Entry = tuple[bytes, int, int]  # a key, and the byte offset and the size of its value


class Tree:
    """The tree of an LMDB file: its check, keys and values, by plain reads of its pages.

    Every method raises CorruptArtifact (``damaged-page``) if a page that it reads is damaged, and OSError if
    the disk fails. Close it, or use it as a context manager.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._meta = path, read_meta(path)
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by `close`
        self._claims: list[tuple[Numbers, Numbers]] = []  # first and past the last page

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Return the number of keys."""
        return self._meta.entries

    def check(self, samples: int, last_key: bytes) -> None:
        """Walk the whole tree and check its pages and keys.

        If the last key is `last_key`, the others must be the rows 0..samples-1 as 8 bytes, big-endian;
        otherwise another program wrote the file, which may have other keys. Reads every branch and leaf page
        once. CorruptArtifact also if a key is missing or misplaced.
        """
        for _ in self._checked_leaves(samples, last_key):
            pass

    def places(self, samples: int, last_key: bytes) -> Iterator[tuple[Numbers, Numbers]]:
        """Yield byte offsets and sizes of the keys' values piece by piece; checks the tree as `check` does.

        Keys are in the library's order: for files that iobench wrote, the rows and then `last_key`. Missing
        keys are found after the last piece.
        """
        for nodes in self._checked_leaves(samples, last_key):
            yield nodes.values()

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if there is none."""
        number = self._meta.root
        for _ in range(self._meta.depth - 1):
            nodes = self._page(number, BRANCH)
            # LMDB never reads the first key of a branch page, which may be empty
            place = bisect_right(nodes.keys(), key, lo=1) - 1
            number = int(nodes.children()[place])
        if not self._meta.depth:
            return None
        nodes = self._page(number, LEAF)
        keys = nodes.keys()
        place = bisect_left(keys, key)
        if keys[place : place + 1] != [key]:
            return None
        offset, size = nodes.values()
        return self.value(int(offset[place]), int(size[place]))

    def value(self, offset: int, size: int) -> bytes:
        """Return the bytes of a value."""
        end = os.fstat(self._file.fileno()).st_size
        if not 0 <= offset <= end - size:
            raise corrupt(self._path, f"a value within {end} bytes", f"{size} bytes at byte {offset}")
        return os.pread(self._file.fileno(), size, offset)

    def entries(self, reverse: bool = False) -> Iterator[Entry]:
        """Yield the entries in the library's order, or from the last to the first."""
        if self._meta.depth:
            yield from self._entries(self._meta.root, self._meta.depth, -1 if reverse else 1)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _entries(self, number: int, levels: int, step: int) -> Iterator[Entry]:
        nodes = self._page(number, BRANCH if levels > 1 else LEAF)
        if levels > 1:
            for child in nodes.children()[::step].tolist():
                yield from self._entries(child, levels - 1, step)
            return
        offset, size = nodes.values()
        yield from list(zip(nodes.keys(), offset.tolist(), size.tolist(), strict=True))[::step]

    def _checked_leaves(self, samples: int, last: bytes) -> Iterator[Nodes]:
        """Yield the nodes of the leaf pages piece by piece; raises after the last if keys are missing."""
        if not 1 <= self._meta.depth <= MOST_LEVELS:
            raise self._damaged("page 0 or 1", f"1 to {MOST_LEVELS} levels", self._meta.depth)
        self._claims = []
        numbers, rows = np.array([self._meta.root], np.uint64).astype(np.int64), np.zeros(1, np.int64)
        for _ in range(self._meta.depth - 1):
            self._claim(numbers, numbers + 1)
            numbers, rows = self._below(numbers, rows, samples, last)
        self._claim(numbers, numbers + 1)
        yield from self._leaves(numbers, rows, samples, last)

    def _below(self, numbers: Numbers, rows: Numbers, samples: int, last: bytes) -> tuple[Numbers, Numbers]:
        """Return the children of branch pages in order, and the row that each must begin with."""
        children, begins = [], []
        for low, pages in self._pieces(numbers):
            nodes = Nodes(self._path, pages, numbers[low : low + len(pages)], BRANCH)
            nodes.check_key_ends()
            # LMDB never reads the first key of a branch page, which may be empty
            first = nodes.firsts()
            begin = nodes.rows(samples, last)
            begin[first] = rows[low : low + len(pages)]
            children.append(nodes.children())
            begins.append(begin)
        return np.concatenate(children), np.concatenate(begins)

    def _leaves(self, numbers: Numbers, rows: Numbers, samples: int, last: bytes) -> Iterator[Nodes]:
        row, overflow, problem, is_ours = 0, [], None, False
        for low, pages in self._pieces(numbers):
            nodes = Nodes(self._path, pages, numbers[low : low + len(pages)], LEAF)
            keys = nodes.rows(samples, last)
            wrong = keys != np.arange(row, row + len(keys))
            first = nodes.firsts()
            wrong[first] |= keys[first] != rows[low : low + len(pages)]
            if wrong.any() and problem is None:
                problem = nodes.error(wrong, "the keys of the rows in order", "another key")
            overflow.append(nodes.overflow_pages())
            row, is_ours = row + len(keys), bool(keys[-1] == samples)
            yield nodes
        if problem is None and row != samples + 1:
            problem = corrupt(self._path, f"{samples} samples", row - 1)
        if problem is not None and is_ours:
            raise problem
        if problem is not None and row != len(self):
            raise corrupt(self._path, f"{len(self)} keys", row)
        self._claim(*(np.concatenate(ends) for ends in zip(*overflow, strict=True)))

    def _claim(self, first: Numbers, stop: Numbers) -> None:
        """Record which pages are used; each may be used once, and must be in the file."""
        wrong = (first < 2) | (stop > self._meta.last + 1) | (stop <= first)
        if wrong.any():
            raise self._damaged("a page number", f"2 to {self._meta.last}", int(first[wrong.argmax()]))
        self._claims.append((first, stop))
        firsts, stops = (np.concatenate(ends) for ends in zip(*self._claims, strict=True))
        order = np.argsort(firsts)
        twice = stops[order][:-1] > firsts[order][1:]
        if twice.any():
            raise self._damaged(f"page {firsts[order][1:][twice.argmax()]}", "one use of it", "several")

    def _page(self, number: int, kind: int) -> Nodes:
        """Return the nodes of a page."""
        if not 2 <= number <= self._meta.last:
            found = f"page {number}"
            raise corrupt(self._path, f"pages 2 to {self._meta.last}", found, kind="damaged-page")
        memory = np.zeros(self._meta.page_bytes + BEHIND, np.uint8)
        page = memory[: self._meta.page_bytes]
        self._read(number * len(page), page)
        return Nodes(self._path, page.reshape(1, -1), np.array([number], np.int64), kind)

    def _pieces(self, numbers: Numbers) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        """Yield the pages piece by piece, with the index of each piece's first; the memory is reused."""
        size = self._meta.page_bytes
        step = max(1, PIECE_BYTES // size)
        memory = np.zeros(min(step, len(numbers)) * size + BEHIND, np.uint8)
        for low in range(0, len(numbers), step):
            some = numbers[low : low + step]
            pages = memory[: len(some) * size].reshape(-1, size)
            runs = [0, *(np.flatnonzero(np.diff(some) != 1) + 1).tolist(), len(some)]
            for begin, end in itertools.pairwise(runs):
                self._read(int(some[begin]) * size, pages[begin:end].reshape(-1))
            yield low, pages

    def _read(self, offset: int, into: npt.NDArray[np.uint8]) -> None:
        done = 0
        while done < len(into):
            got = os.preadv(self._file.fileno(), [into[done:].data], offset + done)
            if not got:
                needed, end = f"at least {offset + len(into)} bytes", f"{offset + done} bytes"
                raise corrupt(self._path, needed, end, kind="truncated")
            done += got

    def _damaged(self, where: str, expected: object, found: object) -> Exception:
        return corrupt(self._path, f"in {where} {expected}", found, kind="damaged-page")
