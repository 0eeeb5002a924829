"""Samples in tar archives: consecutive files with the same name up to the first dot."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from iobench.base.errors import CorruptArtifact
from iobench.contrib.formats.shared.placed_reader import Maps
from iobench.contrib.formats.webdataset.tar import members
from iobench.formats import Index

PIECE = 1 << 20  # samples whose files are listed together, which bounds the memory of a scan


@dataclass(frozen=True)
class TarColumn:
    """Shard, offset and size of the files with one suffix, one per sample in order.

    `varies` is True if sizes differ, in a column that `columns_of` returns.
    """

    file: array[int]
    offset: array[int]
    size: array[int]
    varies: bool = False

    def arrays(self) -> tuple[Index, Index, Index]:
        """Return file, offset and size as int64 arrays."""
        file, offset, size = (np.frombuffer(part, np.int64) for part in (self.file, self.offset, self.size))
        return file, offset, size

    def stored(self, maps: Maps, row: int, most: int | None = None) -> memoryview:
        """Return the bytes of one file, at most the first `most`."""
        begin, size = self.offset[row], self.size[row]
        end = begin + (size if most is None else min(size, most))
        return maps[self.file[row]][begin:end].data

    def path(self, maps: Maps, row: int) -> Path:
        """Return the archive of a sample's file."""
        return maps.files[self.file[row]]


def columns_of(maps: Maps) -> tuple[int, Mapping[str, TarColumn]]:
    """Return the number of samples, and of each suffix that all of them have the files of the first samples.

    CorruptArtifact as from `pieces_of`.
    """
    pieces = pieces_of(maps)
    samples, first = next(pieces)
    sizes = {suffix: _extremes(column) for suffix, column in first.items()}
    common, any_sample = set(first), set(first)
    for more, columns in pieces:
        samples, common, any_sample = samples + more, common & set(columns), any_sample | set(columns)
        for suffix in common:
            sizes[suffix] |= _extremes(columns[suffix])
    if not common:
        raise _missing(maps, any_sample)
    return samples, {
        suffix: replace(column, varies=len(sizes[suffix]) > 1)
        for suffix, column in first.items()
        if suffix in common
    }


def _extremes(column: TarColumn) -> set[int]:
    """Return the smallest and the largest size."""
    return {min(column.size), max(column.size)}


def pieces_of(maps: Maps) -> Iterator[tuple[int, Mapping[str, TarColumn]]]:
    """Yield a number of consecutive samples, at most PIECE, and the files of each suffix that all these have.

    CorruptArtifact of kind ``missing-files`` if no suffix exists in all samples, ``repeated-file`` if a
    sample has a suffix twice, or an archive is damaged.
    """
    columns: dict[str, TarColumn] = {}
    samples = 0
    for number, path in enumerate(maps.files):
        key = None
        for member in members(maps[number], path):
            folder, slash, base = member.name.rpartition("/")
            stem, _, suffix = base.partition(".")
            if not (stem and suffix) or member.name.startswith("__"):  # webdataset skips them as well
                continue
            if key != folder + slash + stem:
                if samples == PIECE:
                    yield samples, _whole(maps, columns, samples)
                    columns, samples = {}, 0
                key, samples = folder + slash + stem, samples + 1
            _add(columns, suffix.lower(), samples, (number, member.offset, member.size), path, key)
    yield samples, _whole(maps, columns, samples)


def _whole(maps: Maps, columns: Mapping[str, TarColumn], samples: int) -> Mapping[str, TarColumn]:
    """Return the columns that all samples have; CorruptArtifact if there are none."""
    whole = {suffix: column for suffix, column in columns.items() if len(column.file) == samples}
    if not whole:
        raise _missing(maps, columns)
    return whole


def _missing(maps: Maps, suffixes: Iterable[str]) -> CorruptArtifact:
    return CorruptArtifact(
        "no suffix exists in all samples",
        kind="missing-files",
        path=maps.files[0].parent,
        expected="samples with the same files each",
        found=", ".join(f".{suffix}" for suffix in sorted(suffixes)[:9]) or "no samples",
    )


def _add(
    columns: dict[str, TarColumn],
    suffix: str,
    samples: int,
    place: tuple[int, int, int],
    path: Path,
    key: str,
) -> None:
    """Add a file of the newest sample, unless an earlier sample lacks this suffix."""
    if suffix not in columns:
        columns[suffix] = TarColumn(array("q"), array("q"), array("q"))
    column = columns[suffix]
    if len(column.file) == samples:
        raise CorruptArtifact(
            f"sample {key} has two files .{suffix}",
            kind="repeated-file",
            path=path,
            hint="give each sample another key",
        )
    if len(column.file) == samples - 1:
        for part, value in zip((column.file, column.offset, column.size), place, strict=True):
            part.append(value)
