"""A file per sample: numbered ones that iobench wrote, or a folder per class that others did."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from iobench.base import interrupts
from iobench.base.errors import corrupt
from iobench.formats import (
    Array,
    Batch,
    Convert,
    Field,
    Index,
    MappedReader,
    Placement,
    Ragged,
    Reader,
    Rows,
    Schema,
    identity,
    index_of,
    unclosed,
    with_own_extents,
)
from iobench.formats.folders import ClassFolder

MOST_WRITERS = 4  # threads
WRITTEN = 500  # files written before Ctrl-C acts
FOLDER_FILES = 1000  # per folder: listing a folder of millions is slow

Decode: TypeAlias = Callable[[Path, Field], Array]
Fill: TypeAlias = Callable[[Path, Array], None]


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


class FilesReader(Reader):
    """Decodes one file per sample and field; other fields come from another reader of the same samples.

    ``decode(file, field)`` returns a sample of a ragged field, in its own shape if there is a field of its
    extents; ``fill(file, out)`` fills one of any other field. Both raise CorruptArtifact for damaged files.
    There are no `blocks`, which StreamLoader would map: the kernel lets a process map 65,530 files.
    """

    def __init__(
        self,
        path: Path,
        schema: Schema,
        files: Mapping[str, Sequence[Path]],
        others: Reader,
        decode: Decode,
        fill: Fill | None = None,
    ) -> None:
        super().__init__(schema)
        for name, own in files.items():
            if len(own) != schema.samples:
                raise corrupt(path, f"{schema.samples} files of {name}", len(own))
        self._files: Mapping[str, Sequence[Path]] | None = files
        self._others, self._decode, self._fill_one = others, decode, fill

    def placement(self) -> Mapping[str, Placement]:
        """Return the locations of the fields of the other reader."""
        return self._others.placement()

    def batch(self, rows: Rows | Sequence[int]) -> Batch:
        """Return the rows in new arrays; IndexError outside 0..len-1."""
        checked, count = self._checked(rows)
        batch: dict[str, Any] = {}
        for field in self.schema.ragged:
            samples = self._timed(self._decoded)(field, index_of(checked))
            if field.name in self.schema.extents:
                batch |= with_own_extents(field, samples)
            else:
                batch[field.name] = Ragged.of(samples, field.inner, field.dtype)
        specs = {name: spec for name, spec in self._specs.items() if name not in batch}
        rest = {name: np.empty((count, *shape), dtype) for name, (shape, dtype) in specs.items()}
        self._fill(checked, rest)
        return {field.name: (batch | rest)[field.name] for field in self.schema.fields}

    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """Return one sample; IndexError outside 0..len-1."""
        if not self.schema.ragged or self.schema.extents:
            return super().sample(row, convert)
        self._check_row(row)
        sample = self._others.sample(row, convert)
        for field in self.schema.ragged:
            sample[field.name] = convert(self._timed(self._decoded)(field, np.array([row]))[0])
        return {field.name: sample[field.name] for field in self.schema.fields}

    def close(self) -> None:
        """Forget the files; none stays open between reads."""
        self._files = None
        self._others.close()

    def _decoded(self, field: Field, rows: Index) -> list[Array]:
        files = unclosed(self._files)[field.name]
        return [self._decode(files[row], field) for row in rows.tolist()]

    def _read_rows(self, rows: Index, out: Mapping[str, Array]) -> None:
        files = unclosed(self._files)
        for name in files.keys() & out.keys():
            self._timed(self._fill_rows)(files[name], rows, out[name])
        self._others.read(rows, {name: array for name, array in out.items() if name not in files})

    def _fill_rows(self, files: Sequence[Path], rows: Index, target: Array) -> None:
        assert self._fill_one is not None
        for row, out in zip(rows.tolist(), target, strict=True):
            self._fill_one(files[row], out)


def class_reader(
    folder: ClassFolder, schema: Schema, decode: Decode, fill: Fill | None = None
) -> FilesReader:
    """Return a reader of a folder's files and their labels, the fields of scalars."""
    files = {field.name: folder.files for field in schema.fields if field.shape}
    scalars = Schema(schema.samples, tuple(field for field in schema.fields if not field.shape))
    labels = MappedReader(scalars, {field.name: folder.labels for field in scalars.fields}, {})
    return FilesReader(folder.path, schema, files, labels, decode, fill)
