"""The user's files, opened so that nothing but a regular file is ever read."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from iobench.base.errors import (
    SourceError,
)
from iobench.base.text import reason
from iobench.formats import Array, raw_bytes

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


_PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")


@dataclass(frozen=True)
class Stamp:
    """What tells one state of a file from another."""

    device: int
    inode: int
    bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> Stamp:
        """The stamp out of what stat(2) says."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def open_regular(path: Path) -> BinaryIO:
    """The file, open for reading; SourceError where it is a FIFO, a device, a socket or a folder.

    The kind is looked at twice: before opening, because opening a device can do something, and on
    what was opened, because another file may have taken its name meanwhile. OSError where it
    cannot be opened.
    """
    _check_regular(path, os.stat(path))
    # not waiting: opening a FIFO would, for somebody who writes
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    try:
        _check_regular(path, os.fstat(file.fileno()))
    except SourceError:
        file.close()
        raise
    return file


def check_unchanged(path: Path, file: BinaryIO, stamp: Stamp) -> None:
    """SourceError where an open file is not, or no longer, the one with this stamp."""
    if Stamp.of(os.fstat(file.fileno())) != stamp:
        raise SourceError(f"--source {path}: it was changed while it was read; try again when nothing writes")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever the operating system refuses, as a SourceError about the file."""
    try:
        yield
    except OSError as error:
        raise SourceError(f"--source {error.filename or path}: {error.strerror or reason(error)}") from error


def holds_images(folder: Path) -> bool:
    """Whether there is a picture in it, or in one of its folders, by a few usual endings of names."""
    with os.scandir(folder) as entries:
        found = [entry for entry in entries if not entry.name.startswith(".")]
    folders = [entry.path for entry in found if entry.is_dir()]
    return any(map(_is_picture, found)) or any(_has_picture(inner) for inner in folders)


def _has_picture(folder: str) -> bool:
    with os.scandir(folder) as entries:
        return any(map(_is_picture, entries))


def _is_picture(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(_PICTURES)


def fill(path: Path, file: BinaryIO, array: Array, offset: int) -> None:
    """Overwrite a C-contiguous array with the bytes at an offset; SourceError where the file ends early."""
    view = raw_bytes(array)
    while view:
        count = os.preadv(file.fileno(), [view], offset)
        if not count:
            raise SourceError(f"--source {path}: it ends early; it was cut while it was read")
        view, offset = view[count:], offset + count


def kind_of(found: os.stat_result) -> str:
    """What something is that is no regular file, in words."""
    return _KINDS.get(stat.S_IFMT(found.st_mode), "no file")


def _check_regular(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise SourceError(f"--source {path}: it is {kind_of(found)}; only regular files are read")
