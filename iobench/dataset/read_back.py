"""Reading of stored artifacts in order, their hashes, and the comparison with checksums."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.base.errors import REPREPARE, WrongContent
from iobench.dataset.checksum import Checksum
from iobench.dataset.hashed_rows import HashedRows
from iobench.dataset.opener import Opener
from iobench.dataset.sources import BATCH_BYTES
from iobench.formats import Batch, Index, check_extents, index_of

READER_BYTES = 256 << 20  # read through one reader: mapped pages count as its memory until it closes

Report = Callable[[int, int], None]  # bytes done, bytes in total


def no_report(done: int, total: int) -> None:
    """Ignore a report of progress."""


def read_back(opener: Opener, rows: int | None = None, hashed: HashedRows | None = None) -> Iterator[Batch]:
    """Yield samples in new arrays.

    Reads the `hashed` rows in their order, by default all, in batches of `rows`, by default of BATCH_BYTES.
    Reopens the reader regularly to release mapped pages. Raises OSError if the disk fails, even under a map,
    and CorruptArtifact for a sample whose extents do not make its length.
    """
    schema = opener.schema
    rows = rows or schema.batch_rows(BATCH_BYTES)
    hashed = hashed or HashedRows.all_of(schema.samples)
    slices = hashed.slices(rows)
    per_reader = max(1, READER_BYTES // (min(rows, hashed.piece_rows) * schema.sample_bytes))
    while some := list(itertools.islice(slices, per_reader)):
        with opener.guarded() as check, opener() as reader:
            check()
            for part in some:
                batch: dict[str, Any] = reader.batch(part)
                check()
                for name, own in schema.extents.items():
                    lengths = np.diff(batch[name].offsets)
                    check_extents(lengths, batch[own], name, opener.path, part.start)
                yield batch


def stored_hashes(
    opener: Opener, hashed: HashedRows, report: Report = no_report
) -> Iterator[tuple[Index, npt.NDArray[np.int64]]]:
    """Read rows and yield them with their hashes, in the order of the list; `report` gets the progress."""
    hasher, rows = Checksum(opener.schema), opener.schema.batch_rows(BATCH_BYTES)
    done, total = 0, hashed.count * opener.schema.sample_bytes
    report(0, total)
    opener.check()
    for part, batch in zip(hashed.slices(rows), read_back(opener, rows, hashed), strict=True):
        yield index_of(part), hasher.hashes(batch)
        done += sum(array.nbytes for array in batch.values())
        report(done, total)


def compare(expected: tuple[int, int], folder: Path, content: Checksum, hint: str = REPREPARE) -> None:
    """Raise WrongContent if content or order of the data in a folder differ from the expected checksums."""
    if (content.content, content.ordered) == expected:
        return
    same = content.content == expected[0]
    raise WrongContent(
        "samples in another order" if same else "other content",
        kind="other-order" if same else "other-content",
        path=folder,
        expected=f"checksum {expected[same]:016x}",
        found=f"{content.ordered if same else content.content:016x}",
        hint=hint,
    )
