"""A file per sample: numbered ones that iobench wrote, or a folder per class that others did."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.base.text import reason
from iobench.formats import Array

FOLDER_FILES = 1000  # per folder: listing a folder of millions is slow


@dataclass(frozen=True)
class NumberedFiles:
    """The files of a field, `000/000000012.png` for row 12, in a folder of its own."""

    folder: Path
    suffix: str

    def of(self, row: int) -> Path:
        """Return the file of a row."""
        return self.folder / f"{row // FOLDER_FILES:03}" / f"{row:09}{self.suffix}"

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


def is_class_folder(path: Path, suffixes: Collection[str]) -> bool:
    """Return True for a folder that contains only folders, the first of them with files of these suffixes."""
    with contextlib.suppress(OSError):
        entries = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
        if entries and all(entry.is_dir() for entry in entries):
            return any(file.suffix.lower() in suffixes for file in min(entries).iterdir())
    return False


def classes(path: Path, suffixes: Collection[str]) -> tuple[list[Path], Array]:
    """Return the files of a folder with one folder per class, sorted, and their int64 labels.

    Raises
    ------
    CorruptArtifact
        The folder cannot be read, or kind ``link`` or ``no-files``.
    """
    found: list[Path] = []
    labels: list[int] = []
    try:
        folders = sorted(entry for entry in path.iterdir() if entry.is_dir() and entry.name[0] != ".")
        for number, folder in enumerate(folders):
            files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in suffixes)
            linked = [file for file in (folder, *files) if file.is_symlink()]
            if linked:
                raise CorruptArtifact(
                    "a symbolic link", kind="link", path=linked[0], expected="files in this folder"
                )
            found += files
            labels += [number] * len(files)
    except OSError as error:
        raise corrupt(path, "a folder per class", reason(error)) from error
    if not found:
        problem = f"no folder in it has {' or '.join(sorted(suffixes))} files"
        raise CorruptArtifact(problem, kind="no-files", path=path)
    return found, np.array(labels, np.int64)
