"""The tree of an LMDB file, walked before the library maps it: it aborts the process on some damage.

Values are not read, nor are the headers of pages that hold a value alone, which the library ignores.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from iobench.base.errors import (
    corrupt,
)
from iobench.formats._lmdb_meta import Meta, read_meta
from iobench.formats._lmdb_nodes import BEHIND, BRANCH, LEAF, NODE_BYTES, Nodes, Numbers

MOST_LEVELS = 32
PIECE_BYTES = 1 << 20  # of pages looked at together: what stays in the processor's cache


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
    """The byte offset and the size of each key's value, found and checked by walking the tree as `check`.

    Keys are in the library's order: rows as we write them, and then `last_key`.
    """
    meta = read_meta(path)
    with open(path, "rb", buffering=0) as file:
        tree = _Tree(path, file.fileno(), meta, samples, last_key)
        tree.values = []
        tree.check()
    offsets, sizes = (np.concatenate(found) for found in zip(*tree.values, strict=True))
    return offsets, sizes


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
            nodes = Nodes(self.path, pages, numbers[low : low + len(pages)], BRANCH)
            nodes.check_ends(nodes.starts + NODE_BYTES + nodes.key_bytes)
            # the first key of a branch page is never looked at, and may be empty
            first = nodes.firsts()
            begin = nodes.rows(self.samples, self.last_key)
            begin[first] = rows[low : low + len(pages)]
            children.append(nodes.children())
            begins.append(begin)
        return np.concatenate(children), np.concatenate(begins)

    def check_leaves(self, numbers: Numbers, rows: Numbers) -> None:
        row, alone, problem, ends_as_ours = 0, [], None, False
        for low, pages in self.pieces(numbers):
            nodes = Nodes(self.path, pages, numbers[low : low + len(pages)], LEAF)
            found = nodes.rows(self.samples, self.last_key)
            wrong = found != np.arange(row, row + len(found))
            first = nodes.firsts()
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
                raise corrupt(self.path, f"at least {offset + len(into)} bytes", f"{offset + done} bytes")
            done += got

    def damaged(self, where: str, expected: object, found: object) -> Exception:
        return corrupt(self.path, f"in {where} {expected}", found)
