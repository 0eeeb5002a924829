"""Files that are to stay as they are while rows are read from them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from iobench.base.errors import (
    corrupt,
)

AT_ONCE = 4  # files that are looked at with each read: of each, the interpreter's lock is let go


class ChangeDetector:
    """Complains about files that are no longer what they were when this was made.

    Of very many, each check looks at the next few: all are looked at again and again, in turn.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        stamps = [(file, _stamp(file)) for file in files]
        self._parts = [stamps[low : low + AT_ONCE] for low in range(0, len(stamps), AT_ONCE)] or [[]]
        self._turn = itertools.count()

    def check(self) -> None:
        """CorruptArtifact where a file was truncated, rewritten, replaced or removed since."""
        for file, stamp in self._parts[next(self._turn) % len(self._parts)]:
            if (now := _stamp(file)) != stamp:
                found = f"{now[0]} bytes, changed while it was read" if now else "no such file"
                raise corrupt(file, f"{stamp[0]} bytes" if stamp else "a file", found)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino
