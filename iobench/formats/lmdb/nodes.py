"""The nodes of an LMDB file's pages, decoded for many pages at once and checked before use.

Layout of data version 1, 64 bits, little-endian, as LMDB's source (mdb.c) declares it:

page    number u64, pad u16, kind u16, lower u16, upper u16; then an offset u16 per node, up to `lower`;
        the nodes lie from `upper` to the end
node    u16 × 4: in a leaf the value's bytes (two words), flags, the key's bytes; in a branch the child's
        page (three words), the key's bytes. Then the key, then the value, or with flag 1 the number of
        the first overflow page, which holds the value after a page header
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.base.errors import corrupt

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
        self._words: npt.NDArray[np.uint64] = np.ndarray((base.size // 2 - 3,), "<u8", base, strides=(2,))
        self.headers = self.words(0)
        self.key_bytes = (self.headers >> np.uint64(48)).astype(np.int64)

    def words(self, offset: int | Numbers) -> npt.NDArray[np.uint64]:
        """Return 8 bytes of each node, at an even offset in it."""
        words: npt.NDArray[np.uint64] = self._words[(self.pages * self._size + self.starts + offset) // 2]
        return words

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
        flags = (self.headers >> np.uint64(32)) & np.uint64(0xFFFF)
        self.refuse(flags > OVERFLOW, "plain values", f"flags {int(flags.max(initial=0))}")
        value, begin = (self.headers & np.uint64(0xFFFFFFFF)).astype(np.int64), NODE_BYTES + self.key_bytes
        overflow = flags == OVERFLOW
        self.check_ends(self.starts + begin + np.where(overflow, NUMBER_BYTES, value))
        first = self._page_at(begin)[overflow]
        return first, first + (HEADER_BYTES - 1 + value[overflow]) // self._size + 1

    def values(self) -> tuple[Numbers, Numbers]:
        """Return the file offset and the size of each value."""
        size, begin = (self.headers & np.uint64(0xFFFFFFFF)).astype(np.int64), NODE_BYTES + self.key_bytes
        inline = self._numbers[self.pages] * self._size + self.starts + begin
        separate = self._page_at(begin) * self._size + HEADER_BYTES
        flags = (self.headers >> np.uint64(32)) & np.uint64(0xFFFF)
        return np.where(flags == OVERFLOW, separate, inline), size

    def _page_at(self, begin: Numbers) -> Numbers:
        """Return the page number in each node, after a key that may have an odd length."""
        odd = (begin % 2).astype(np.uint64)
        pages: Numbers = (self.words(begin - begin % 2) >> (np.uint64(8) * odd)).astype(np.int64)
        return pages

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
