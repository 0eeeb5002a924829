"""Check of an LMDB file's tree before the library maps it, because some damage makes it abort the process.

Values are not read, nor the headers of overflow pages, which the library ignores.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from iobench.base.errors import corrupt
from iobench.formats.lmdb.meta import Meta, read_meta
from iobench.formats.lmdb.nodes import BEHIND, BRANCH, LEAF, NODE_BYTES, Nodes, Numbers

MOST_LEVELS = 32
PIECE_BYTES = 1 << 20  # of pages that are decoded together, so that they fit in the L2 cache


def check(path: Path, samples: int, last_key: bytes) -> None:
    """Walk the whole tree and check its pages and keys.

    If the last key is `last_key`, the others must be the rows 0..samples-1 as 8 bytes, big-endian;
    otherwise another program wrote the file, which may have other keys. Reads every branch and leaf page
    once, with plain reads, so that a read error of the disk is an OSError. CorruptArtifact if a page is
    damaged (``damaged-page``), or a key is missing or misplaced.
    """
    meta = read_meta(path)
    with open(path, "rb", buffering=0) as file:
        for _ in _Tree(path, file.fileno(), meta, samples, last_key).checked_leaves():
            pass


def values(path: Path, samples: int, last_key: bytes) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield byte offsets and sizes of the keys' values piece by piece; checks the tree as `check` does.

    Keys are in the library's order: for files that iobench wrote, the rows and then `last_key`. Missing keys
    are found after the last piece.
    """
    meta = read_meta(path)
    with open(path, "rb", buffering=0) as file:
        for nodes in _Tree(path, file.fileno(), meta, samples, last_key).checked_leaves():
            yield nodes.values()


@dataclass
class _Tree:
    path: Path
    descriptor: int
    meta: Meta
    samples: int
    last_key: bytes
    claims: list[tuple[Numbers, Numbers]] = field(default_factory=list)  # first and past the last page

    def checked_leaves(self) -> Iterator[Nodes]:
        """Yield the nodes of the leaf pages piece by piece; raises after the last if keys are missing."""
        if not 1 <= self.meta.depth <= MOST_LEVELS:
            raise self.damaged("page 0 or 1", f"1 to {MOST_LEVELS} levels", self.meta.depth)
        numbers, rows = np.array([self.meta.root], np.uint64).astype(np.int64), np.zeros(1, np.int64)
        for _ in range(self.meta.depth - 1):
            self.claim(numbers, numbers + 1)
            numbers, rows = self.below(numbers, rows)
        self.claim(numbers, numbers + 1)
        yield from self.leaves(numbers, rows)

    def below(self, numbers: Numbers, rows: Numbers) -> tuple[Numbers, Numbers]:
        """Return the children of branch pages in order, and the row that each must begin with."""
        children, begins = [], []
        for low, pages in self.pieces(numbers):
            nodes = Nodes(self.path, pages, numbers[low : low + len(pages)], BRANCH)
            nodes.check_ends(nodes.starts + NODE_BYTES + nodes.key_bytes)
            # LMDB never reads the first key of a branch page, which may be empty
            first = nodes.firsts()
            begin = nodes.rows(self.samples, self.last_key)
            begin[first] = rows[low : low + len(pages)]
            children.append(nodes.children())
            begins.append(begin)
        return np.concatenate(children), np.concatenate(begins)

    def leaves(self, numbers: Numbers, rows: Numbers) -> Iterator[Nodes]:
        row, overflow, problem, is_ours = 0, [], None, False
        for low, pages in self.pieces(numbers):
            nodes = Nodes(self.path, pages, numbers[low : low + len(pages)], LEAF)
            keys = nodes.rows(self.samples, self.last_key)
            wrong = keys != np.arange(row, row + len(keys))
            first = nodes.firsts()
            wrong[first] |= keys[first] != rows[low : low + len(pages)]
            if wrong.any() and problem is None:
                problem = nodes.error(wrong, "the keys of the rows in order", "another key")
            overflow.append(nodes.overflow_pages())
            row, is_ours = row + len(keys), bool(keys[-1] == self.samples)
            yield nodes
        if problem is None and row != self.samples + 1:
            problem = corrupt(self.path, f"{self.samples} samples", row - 1)
        if problem is not None and is_ours:
            raise problem
        if problem is not None and row != self.meta.entries:
            raise corrupt(self.path, f"{self.meta.entries} keys", row)
        self.claim(*(np.concatenate(ends) for ends in zip(*overflow, strict=True)))

    def claim(self, first: Numbers, stop: Numbers) -> None:
        """Record which pages are used; each may be used once, and must be in the file."""
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
        """Yield the pages piece by piece, with the index of each piece's first; the memory is reused."""
        size = self.meta.page_bytes
        step = max(1, PIECE_BYTES // size)
        memory = np.zeros(min(step, len(numbers)) * size + BEHIND, np.uint8)
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
                raise corrupt(
                    self.path,
                    f"at least {offset + len(into)} bytes",
                    f"{offset + done} bytes",
                    kind="truncated",
                )
            done += got

    def damaged(self, where: str, expected: object, found: object) -> Exception:
        return corrupt(self.path, f"in {where} {expected}", found, kind="damaged-page")
