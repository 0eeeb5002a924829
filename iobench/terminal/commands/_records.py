"""Records named on the command line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iobench.results.record import Record


def records_of(paths: Iterable[Path]) -> list[Record]:
    """Read the records of these files; report each unreadable line on stderr."""
    from iobench.results import record
    from iobench.terminal import display

    records = []
    for path in paths:
        readable, skipped = record.read(path)
        records += readable
        for sentence in skipped:
            display.note(f"skipped: {sentence}")
    return records
