"""Records that a command was told to use."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iobench.results.record import Record


def records_of(paths: Iterable[Path]) -> list[Record]:
    """The records of these files; each line that is none is named on stderr."""
    from iobench.results import record
    from iobench.terminal import display

    records = []
    for path in paths:
        found, left_out = record.read(path)
        records += found
        for sentence in left_out:
            display.note(f"left out: {sentence}")
    return records
