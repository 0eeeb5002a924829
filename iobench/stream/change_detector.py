"""Detect changes of files while rows are read from them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from iobench.base.errors import corrupt

AT_ONCE = 4  # files checked with each read: each check releases the GIL


class ChangeDetector:
    """Detects files whose size, modification time or inode changed since the detector was made."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files
        stamps = [(file, _stamp(file)) for file in files]
        self._parts = [stamps[low : low + AT_ONCE] for low in range(0, len(stamps), AT_ONCE)] or [[]]
        self._turn = itertools.count()

    def check(self, every: bool = False) -> None:
        """Raise CorruptArtifact if a file was truncated, rewritten, replaced or removed.

        Looks at the next AT_ONCE files, in a cycle over all of them, or at `every` file.
        """
        parts = self._parts if every else [self._parts[next(self._turn) % len(self._parts)]]
        for file, stamp in itertools.chain.from_iterable(parts):
            if (now := _stamp(file)) != stamp:
                size = f"{now[0]} bytes, changed while it was read" if now else "no such file"
                expected = f"{stamp[0]} bytes" if stamp else "a file"
                raise corrupt(file, expected, size, kind="changed" if now else "missing-file")

    def is_unchanged(self) -> bool:
        """Return True if no file changed."""
        return all(_stamp(file) == stamp for part in self._parts for file, stamp in part)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        stat = os.stat(file)
    except FileNotFoundError:
        return None
    return stat.st_size, stat.st_mtime_ns, stat.st_ino
