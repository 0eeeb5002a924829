"""Lists of lists of other programs: samples whose first axes vary, each of them rectangular."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.contrib.formats.shared.external import unequal_samples
from iobench.formats import Array, Index, offsets_of


@dataclass(frozen=True, eq=False)
class NestedLists:
    """Lists whose outer axes are one.

    `lengths`, int64, and `extents`, int32 of shape ``(rows, axes)``, are those of each sample; `inner` holds
    the elements of all samples, as an Arrow array.
    """

    lengths: Index
    extents: Array
    inner: pa.Array

    @classmethod
    def of(cls, path: Path, name: str, column: pa.Array, axes: int, first: int = 0) -> NestedLists:
        """Return a column with its first axes merged; `first` is the number of its first sample, in errors.

        CorruptArtifact for a null, or (``unequal-shapes``) a sample that is not rectangular.
        """
        counts, extents = np.ones(len(column), np.int64), []
        for _ in range(axes):
            lengths, starts = list_lengths(path, name, column), offsets_of(counts)
            sizes = np.zeros(len(counts), np.int64)
            sizes[counts > 0] = lengths[starts[:-1][counts > 0]]
            wrong = np.flatnonzero(lengths != np.repeat(sizes, counts))
            if wrong.size:
                sample = int(np.searchsorted(starts, wrong[0], side="right")) - 1
                found = sorted(set(lengths[starts[sample] : starts[sample + 1]].tolist()))
                raise _not_rectangular(path, name, first + sample, (found[0], found[-1]))
            counts, column = counts * sizes, column.flatten()
            extents.append(sizes)
        return cls(counts, np.stack(extents, axis=1).astype(np.int32), column)


def list_lengths(path: Path, name: str, column: pa.Array) -> Index:
    """Return the length of each list of a column; CorruptArtifact if some are missing."""
    if column.null_count:
        raise corrupt(path, f"lists in column {name}", f"{column.null_count} nulls", kind="nulls")
    if pa.types.is_fixed_size_list(column.type):
        return np.full(len(column), column.type.list_size, np.int64)
    offsets: Index = column.offsets.to_numpy(zero_copy_only=True).astype(np.int64)
    return np.diff(offsets)


def _not_rectangular(path: Path, name: str, sample: int, found: tuple[int, int]) -> CorruptArtifact:
    problem = f"column {name}: sample {sample:,} is not rectangular"
    return unequal_samples(
        path, problem, "inner lists of one length", f"lists of {found[0]:,} to {found[1]:,}"
    )
