"""The nodes of an LMDB file's pages, of many at once, checked before anything follows them.

Of data version 1, 64 bits, little-endian, as LMDB's source (mdb.c) declares them:

page    number u64, pad u16, kind u16, lower u16, upper u16; then an offset u16 per node, up to `lower`;
        the nodes lie from `upper` to the end
node    u16 × 4: of a leaf the value's bytes (two words), flags, the key's bytes; of a branch the child's
        page (three words), the key's bytes. Then the key, then the value, or with flag 1 the number of
        the first of the pages that hold it alone, after a page header
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.base.errors import (
    corrupt,
)

HEADER_BYTES, NODE_BYTES, NUMBER_BYTES = 16, 8, 8
BRANCH, LEAF = 1, 2
ALONE = 1  # the flag of a value in pages of its own
BEHIND = 8  # bytes of memory behind pages whose nodes are looked at

Numbers = npt.NDArray[np.int64]


class Nodes:
    """The nodes of some pages of one kind, in order: their pages, offsets, headers and key sizes.

    `pages`: a row each, of `numbers` in the file, in memory that goes on for 8 bytes after them, so that any
    node's key can be looked at as 8 bytes. CorruptArtifact where a page is not of that number and kind, or
    a node is not within it.
    """

    def __init__(self, path: Path, pages: npt.NDArray[np.uint8], numbers: Numbers, kind: int) -> None:
        self._path, self._numbers, self._size = path, numbers, pages.shape[1]
        words = pages.view("<u2")
        lower, upper = words[:, 6].astype(np.int64), words[:, 7].astype(np.int64)
        counts = (lower - HEADER_BYTES) // 2
        least = 2 if kind == BRANCH else 1
        self._complain(pages.view("<u8")[:, 0] != numbers.view(np.uint64), "its own number", "another")
        self._complain(words[:, 5] != kind, f"kind {kind}", "another")
        self._complain(
            (counts < least) | (lower % 2 != 0) | (lower > upper) | (upper > self._size),
            f"{least} nodes or more within it",
            "other bounds",
        )
        self.pages = np.repeat(np.arange(len(pages)), counts)
        place = np.arange(len(self.pages)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.starts = words[self.pages, HEADER_BYTES // 2 + place].astype(np.int64)
        self.complain(
            (self.starts < upper[self.pages])
            | (self.starts > self._size - NODE_BYTES)
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
        found: npt.NDArray[np.uint64] = self._words[(self.pages * self._size + self.starts + offset) // 2]
        return found

    def rows(self, samples: int, last: bytes) -> Numbers:
        """The row that each key stands for, the number of samples for the key `last`, -1 for others."""
        key = self.words(NODE_BYTES)
        rows = np.where(self.key_bytes == 8, key.byteswap().view(np.int64), -1)
        mask = np.uint64((1 << 8 * len(last)) - 1)
        is_last = (self.key_bytes == len(last)) & (key & mask == np.uint64(int.from_bytes(last, "little")))
        rows[is_last] = samples
        return rows

    def children(self) -> Numbers:
        """The page below each node of branch pages."""
        found: Numbers = (self.headers & np.uint64(0xFFFFFFFFFFFF)).astype(np.int64)
        return found

    def firsts(self) -> Numbers:
        """The first node of each page."""
        return np.flatnonzero(np.diff(self.pages, prepend=-1))

    def values_alone(self) -> tuple[Numbers, Numbers]:
        """The first page, and that past the last, of each value with pages of its own; all values checked."""
        flags = (self.headers >> np.uint64(32)) & np.uint64(0xFFFF)
        self.complain(flags > ALONE, "plain values", f"flags {int(flags.max(initial=0))}")
        value, begin = (self.headers & np.uint64(0xFFFFFFFF)).astype(np.int64), NODE_BYTES + self.key_bytes
        alone = flags == ALONE
        self.check_ends(self.starts + begin + np.where(alone, NUMBER_BYTES, value))
        first = self._page_at(begin)[alone]
        return first, first + (HEADER_BYTES - 1 + value[alone]) // self._size + 1

    def values(self) -> tuple[Numbers, Numbers]:
        """The offset in the file and the size of each value."""
        size, begin = (self.headers & np.uint64(0xFFFFFFFF)).astype(np.int64), NODE_BYTES + self.key_bytes
        beside = self._numbers[self.pages] * self._size + self.starts + begin
        apart = self._page_at(begin) * self._size + HEADER_BYTES
        flags = (self.headers >> np.uint64(32)) & np.uint64(0xFFFF)
        return np.where(flags == ALONE, apart, beside), size

    def _page_at(self, begin: Numbers) -> Numbers:
        """The number of a page that stands in each node, behind a key that may be of an odd length."""
        odd = (begin % 2).astype(np.uint64)
        found: Numbers = (self.words(begin - begin % 2) >> (np.uint64(8) * odd)).astype(np.int64)
        return found

    def check_ends(self, ends: Numbers) -> None:
        """Complain of nodes that go on past their page."""
        self.complain(ends > self._size, "nodes within it", "one that goes on")

    def complain(self, wrong: npt.NDArray[np.bool_], expected: str, found: str) -> None:
        """CorruptArtifact for the page of the first node of which this is true."""
        if wrong.any():
            raise self.complaint(wrong, expected, found)

    def complaint(self, wrong: npt.NDArray[np.bool_], expected: str, found: str) -> Exception:
        """The CorruptArtifact for the page of the first node of which this is true."""
        return self._damaged(self._numbers[self.pages[wrong.argmax()]], expected, found)

    def _complain(self, wrong: npt.NDArray[np.bool_], expected: str, found: str) -> None:
        if wrong.any():
            raise self._damaged(self._numbers[wrong.argmax()], expected, found)

    def _damaged(self, number: int, expected: str, found: str) -> Exception:
        return corrupt(self._path, f"in page {number} {expected}", found)
