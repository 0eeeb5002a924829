"""Access to the user's files that reads nothing but regular files."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from iobench import formats
from iobench.base.errors import CorruptArtifact, SourceError
from iobench.base.text import reason
from iobench.formats import Array, raw_bytes
from iobench.host.system_errors import system_error

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}

_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")

LABELLED = "put images or sound files into one subfolder per label"
CLOSE_WRITERS = "try again when no program writes to it"  # for data that change while they are read


def usual_format(path: Path, flag: str) -> str:
    """Return a hint at the format that files of this suffix usually have, whose own error says more."""
    name = formats.meant(path.suffix[1:].lower())
    return f"if it is {name}, give {flag} {name}; " if name else ""


@dataclass(frozen=True)
class FileState:
    """Identity of one state of a file."""

    device: int
    inode: int
    bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileState:
        """Take the state from a result of stat(2)."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises SourceError for a FIFO, device, socket or folder, and OSError if the file cannot be opened. The
    type is checked twice: before opening, because opening a device can have effects, and on the descriptor,
    because another file may have taken the name in between.
    """
    check_regular(path, os.stat(path))
    # non-blocking: opening a FIFO waits for a writer
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    try:
        check_regular(path, os.fstat(file.fileno()))
    except SourceError:
        file.close()
        raise
    return file


def check_unchanged(path: Path, file: BinaryIO, state: FileState) -> None:
    """Raise SourceError if an open file is not in this state."""
    if FileState.of(os.fstat(file.fileno())) != state:
        raise SourceError("changed while it was read", kind="changed", path=path, hint=CLOSE_WRITERS)


@contextlib.contextmanager
def source_errors(path: Path) -> Iterator[None]:
    """Convert an OSError or CorruptArtifact in the body to a SourceError, about `path` if about no file."""
    try:
        yield
    except CorruptArtifact as error:
        raise error.converted(SourceError) from None
    except OSError as error:
        raise refused_by_system(error, path) from error


def refused_by_system(error: OSError, path: str | os.PathLike[str]) -> SourceError:
    """Return the SourceError for an OSError about its file, by default `path`."""
    if refused := system_error(error):
        return refused.converted(SourceError)
    kind = "missing-file" if isinstance(error, FileNotFoundError) else None
    return SourceError(error.strerror or reason(error), kind=kind, path=error.filename or path)


def no_such_path(path: Path) -> SourceError:
    """Return the SourceError for a path that does not exist, or that is a URL."""
    scheme, colon, place = str(path).partition(":/")
    if colon and scheme.isalnum():
        return SourceError(
            "data of other programs are read from a disk, not from an address",
            kind="remote-data",
            path=f"{scheme}://{place.lstrip('/')}",
            hint="download the data, or mount them as a folder, and give that path; 'iobench add' takes an "
            "address, too",
        )
    return SourceError("no such file or folder", kind="missing-file", path=path)


def contains_images(folder: Path) -> bool:
    """Return whether the folder or one of its subfolders contains an image, by common file suffixes."""
    with os.scandir(folder) as scan:
        entries = [entry for entry in scan if not entry.name.startswith(".")]
    folders = [entry.path for entry in entries if entry.is_dir()]
    return any(map(_is_image, entries)) or any(_has_image(inner) for inner in folders)


def _has_image(folder: str) -> bool:
    with os.scandir(folder) as entries:
        return any(map(_is_image, entries))


def _is_image(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(_IMAGE_SUFFIXES)


def fill(path: Path, file: BinaryIO, array: Array, offset: int) -> None:
    """Read bytes at an offset into a C-contiguous array; raises SourceError if the file is too short."""
    view = raw_bytes(array)
    while view:
        count = os.preadv(file.fileno(), [view], offset)
        if not count:
            raise SourceError("truncated while it was read", kind="truncated", path=path, hint=CLOSE_WRITERS)
        view, offset = view[count:], offset + count


def check_regular(path: str | os.PathLike[str], status: os.stat_result, hint: str | None = None) -> None:
    """Raise SourceError for anything but a regular file."""
    if not stat.S_ISREG(status.st_mode):
        raise SourceError(
            kind="not-a-file",
            path=path,
            expected="a regular file",
            found=_KINDS.get(stat.S_IFMT(status.st_mode), "something else"),
            hint=hint,
        )
