"""The meta pages of an LMDB file, which hold the root of its tree.

Pages 0 and 1 of data version 1, 64 bits, little-endian, as LMDB's source (mdb.c) declares them. The one
with the higher transaction number is valid.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.base.files import regular

META = 8
MAGIC, VERSION = 0xBEEFC0DE, 1
INTEGER_KEYS, ONE_FILE = 8, 0x4000  # the flags of the tree of free pages, the second of an environment

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
        return _read_meta(path, file.fileno())


def _read_meta(path: Path, descriptor: int) -> Meta:
    first = _one_meta(path, descriptor, 0, 0)
    page_bytes = int(first["free"]["page_bytes"])
    if not (256 <= page_bytes <= 1 << 15 and page_bytes & (page_bytes - 1) == 0):
        raise corrupt(path, "pages of 256 to 32768 bytes", page_bytes)
    second = _one_meta(path, descriptor, 1, page_bytes)
    if second["free"]["page_bytes"] != page_bytes:
        raise corrupt(path, f"pages of {page_bytes} bytes", int(second["free"]["page_bytes"]))
    valid = second if second["transaction"] > first["transaction"] else first
    tree, last, size = valid["main"], int(valid["last"]), os.fstat(descriptor).st_size
    if size < (last + 1) * page_bytes:  # reading past the end of a mapped file kills the process
        raise corrupt(path, f"at least {(last + 1) * page_bytes} bytes", f"{size} bytes", kind="truncated")
    if tree["flags"] or valid["free"]["flags"] not in (INTEGER_KEYS, INTEGER_KEYS | ONE_FILE):
        raise corrupt(path, "a tree of single values", f"flags {tree['flags']}, {valid['free']['flags']}")
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
