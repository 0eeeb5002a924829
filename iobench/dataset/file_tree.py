"""Files of data that iobench did not write, and a stamp that identifies their state.

A stamp has one size, however many files there are: their number, their bytes, the newest time of change,
and a digest over each file's name, size, time of change and inode. Taking it costs one stat per file,
about 7 µs of processor time, and opens none.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from iobench.base.errors import SourceError
from iobench.base.units import bytes_text, counted
from iobench.dataset.manifest_body import TreeStamp
from iobench.dataset.sources._regular_files import check_regular, refused_by_system


@dataclass(frozen=True)
class FileTree:
    """A file, or all files below a folder sorted by name; `stamp` identifies their state."""

    path: Path
    names: tuple[str, ...]  # paths of the files
    stamp: TreeStamp
    disk_bytes: int  # allocated for them

    @classmethod
    def of(cls, path: Path) -> FileTree:
        """List and stamp the files now at `path`.

        Raises SourceError if nothing is there (`missing-file`), for anything but regular files and folders
        (`not-a-file`), and for a link out of the folder (`link-outside`): nothing outside it is read.
        """
        above = len(os.fsencode(path))  # bytes in front of each relative name
        digest, names, size, allocated, newest = hashlib.blake2b(digest_size=8), [], 0, 0, 0
        for file, status in _walk(path):
            name = os.fsencode(file)[above:]
            digest.update(b"%s\0%d %d %d\n" % (name, status.st_size, status.st_mtime_ns, status.st_ino))
            names.append(file)
            size, allocated = size + status.st_size, allocated + 512 * status.st_blocks
            newest = max(newest, status.st_mtime_ns)
        if not names:
            raise SourceError("the folder contains no file", kind="empty", path=path)
        return cls(path, tuple(names), TreeStamp(len(names), size, newest, digest.hexdigest()), allocated)

    @property
    def files(self) -> list[Path]:
        """Paths of all files."""
        return [Path(name) for name in self.names]


def differences(before: TreeStamp, now: TreeStamp) -> str:
    """Describe the difference of two states in a few words."""
    if (before.files, before.bytes) == (now.files, now.bytes):
        return "a file was rewritten, moved or replaced"
    then, since = (f"{counted(s.files, 'file')} of {bytes_text(s.bytes)}" for s in (before, now))
    if then == since:
        then, since = (f"{s.bytes:,} bytes" for s in (before, now))
    return f"was {then}, is {since}"


def _walk(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            yield from _below(os.fspath(path), os.path.realpath(path) + os.sep)
        else:
            check_regular(path, status)
            yield os.fspath(path), status
    except OSError as error:
        raise refused_by_system(error, path) from error


def _below(folder: str, inside: str) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_symlink():
            _check_link(entry.path, inside)
        elif entry.is_dir(follow_symlinks=False):
            yield from _below(entry.path, inside)
            continue
        status = entry.stat()
        check_regular(entry.path, status, hint="move it out of the folder")
        yield entry.path, status


def _check_link(path: str, inside: str) -> None:
    target = os.path.realpath(path)
    if not target.startswith(inside):
        raise SourceError(
            f"a link out of the folder, to {target}",
            kind="link-outside",
            path=path,
            hint="replace it by a copy, or name the folder it points to",
        )
    if os.path.isdir(target):
        problem = "a link to another folder inside the data"
        raise SourceError(problem, kind="link-to-folder", path=path, hint="remove the link")
