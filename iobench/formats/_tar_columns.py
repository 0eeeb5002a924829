"""Samples in tar archives: files that follow each other and are named alike up to the first dot."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from iobench.base.errors import (
    CorruptArtifact,
    corrupt,
)
from iobench.formats._placed_reader import Maps
from iobench.formats._placement import Index
from iobench.formats._tar import members


@dataclass(frozen=True)
class TarColumn:
    """The files with one suffix, of all samples in order: in which shard, from which byte, and how long."""

    file: array[int]
    offset: array[int]
    size: array[int]

    def arrays(self) -> tuple[Index, Index, Index]:
        """The same as arrays."""
        file, offset, size = (np.frombuffer(part, np.int64) for part in (self.file, self.offset, self.size))
        return file, offset, size

    def stored(self, maps: Maps, row: int, most: int | None = None) -> memoryview:
        """The bytes of one file, or the first of them."""
        begin, size = self.offset[row], self.size[row]
        end = begin + (size if most is None else min(size, most))
        return maps[self.file[row]][begin:end].data

    def path(self, maps: Maps, row: int) -> Path:
        """The archive that a file is in."""
        return maps.files[self.file[row]]


def columns_of(maps: Maps) -> tuple[int, Mapping[str, TarColumn]]:
    """How many samples there are, and the files of each suffix that all of them have."""
    columns: dict[str, TarColumn] = {}
    samples = 0
    for number, path in enumerate(maps.files):
        key = None
        for member in members(maps[number], path):
            folder, slash, base = member.name.rpartition("/")
            stem, _, suffix = base.partition(".")
            if not (stem and suffix) or member.name.startswith("__"):  # webdataset leaves them out, too
                continue
            if key != folder + slash + stem:
                key, samples = folder + slash + stem, samples + 1
            _add(columns, suffix.lower(), samples, (number, member.offset, member.size), path, key)
    whole = {suffix: column for suffix, column in columns.items() if len(column.file) == samples}
    if not whole:
        raise corrupt(maps.files[0].parent, "samples with the same files each", sorted(columns)[:9] or "none")
    return samples, whole


def _add(
    columns: dict[str, TarColumn],
    suffix: str,
    samples: int,
    place: tuple[int, int, int],
    path: Path,
    key: str,
) -> None:
    """Note a file of the newest sample; a suffix that an earlier sample lacks is never whole."""
    if suffix not in columns:
        columns[suffix] = TarColumn(array("q"), array("q"), array("q"))
    column = columns[suffix]
    if len(column.file) == samples:
        raise CorruptArtifact(f"{path}: sample {key} has two files .{suffix}; keys must differ")
    if len(column.file) == samples - 1:
        for part, value in zip((column.file, column.offset, column.size), place, strict=True):
            part.append(value)
