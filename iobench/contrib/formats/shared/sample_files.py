"""A file per sample: numbered ones that iobench wrote, or a folder per class that others did."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iobench.base import interrupts
from iobench.base.errors import corrupt
from iobench.formats import (
    Array,
    Field,
    MappedReader,
    Ragged,
    RaggedColumn,
    RaggedReader,
    Rows,
    Schema,
    TimingWrapper,
    unclosed,
)
from iobench.formats.folders import ClassFolder

MOST_WRITERS = 4  # threads
WRITTEN = 500  # files written before Ctrl-C acts
FOLDER_FILES = 1000  # per folder: listing a folder of millions is slow


@dataclass(frozen=True)
class NumberedFiles:
    """The files of a field, `000/000000012.png` for row 12, in a folder of its own."""

    folder: Path
    suffix: str

    def of(self, row: int) -> Path:
        """Return the file of a row."""
        return self.folder / f"{row // FOLDER_FILES:03}" / f"{row:09}{self.suffix}"

    def exist(self, samples: int) -> bool:
        """Return whether the first or the last one is there, so that iobench wrote them."""
        return self.of(0).is_file() or self.of(samples - 1).is_file()

    def new(self, start: int, count: int) -> list[Path]:
        """Return the files of these rows, after their folders were made."""
        files = [self.of(row) for row in range(start, start + count)]
        for folder in dict.fromkeys(file.parent for file in files):
            folder.mkdir(parents=True, exist_ok=True)
        return files

    def existing(self, samples: int, what: str) -> list[Path]:
        """Return the files of all rows; CorruptArtifact if the last one is missing or there is one more."""
        last, after = self.of(samples - 1), self.of(samples)
        if not last.is_file():
            raise corrupt(last, what, "no such file")
        if after.exists():
            raise corrupt(self.folder, f"{samples} files", f"one more, {after.name}")
        return [self.of(row) for row in range(samples)]


@contextlib.contextmanager
def file_writers() -> Iterator[Callable[..., None]]:
    """Yield ``write_all(write, files, samples)``, which calls ``write(file, sample)`` in several threads.

    Ctrl-C acts when WRITTEN files are done. A KeyboardInterrupt in the code of the pool could leave one of
    its locks acquired, and the threads would wait for it without end.
    """
    pool = ThreadPoolExecutor(min(MOST_WRITERS, os.cpu_count() or 1))

    def write_all(write: Callable[[Path, Any], None], files: Sequence[Path], samples: Any) -> None:
        for low in range(0, len(files), WRITTEN):
            some = slice(low, low + WRITTEN)
            with interrupts.deferred() as check:
                list(pool.map(write, files[some], samples[some]))
                check()

    try:
        yield write_all
    finally:
        with interrupts.deferred() as check:
            pool.shutdown()
            check()


class FileColumn(RaggedColumn):
    """A ragged field of one file per row, which ``decode(file, field)`` returns when it is read.

    `decode` raises CorruptArtifact if the file is damaged.
    """

    def __init__(self, field: Field, files: Sequence[Path], decode: Callable[[Path, Field], Array]) -> None:
        self._field, self._decode = field, decode
        self._files: Sequence[Path] | None = files

    def sample(self, row: int) -> Array:
        """Return a file's sample."""
        return self._decode(unclosed(self._files)[row], self._field)

    def batch(self, rows: Rows) -> Ragged:
        """Return samples in new arrays."""
        files = unclosed(self._files)
        numbers = range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist()
        samples = [self._decode(files[row], self._field) for row in numbers]
        return Ragged.of(samples, self._field.inner, self._field.dtype)

    def time_decoding(self, timed: TimingWrapper) -> None:
        """Time the reading and decoding of files."""
        self._decode = timed(self._decode)

    def close(self) -> None:
        """Forget the files; none stays open between reads."""
        self._files = None


def class_reader(folder: ClassFolder, schema: Schema, decode: Callable[[Path, Field], Array]) -> RaggedReader:
    """Return a reader of a folder's files, samples of different lengths, and their labels."""
    if len(folder.files) != schema.samples:
        raise corrupt(folder.path, f"{schema.samples} files", f"{len(folder.files)}")
    columns = {field.name: FileColumn(field, folder.files, decode) for field in schema.ragged}
    fixed = MappedReader(schema.fixed, {field.name: folder.labels for field in schema.fixed.fields}, {})
    return RaggedReader(schema, fixed, columns)
