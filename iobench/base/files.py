"""Files: names from outside, regular ones, those written whole or not at all, and the system's errors."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from iobench.base.errors import CorruptArtifact, IobenchError, no_permission
from iobench.base.text import reason, shortened

TEMPORARY = ".tmp-"  # start of the names of unfinished files
NAME_BYTES = 255  # of a file's name on nearly every file system
PATH_BYTES = 4096


def name_problem(name: object) -> str | None:
    """Return why a name in data of others cannot be that of a file below a folder; None if it can.

    All names from outside are checked here: of objects, and of files in manifests, seals, indexes, archives
    and messages of other ranks. Two of them never are the same path, unless the file system ignores case.
    """
    if not isinstance(name, str) or not name:
        return "no name"
    parts = name.split("/")
    if not parts[0]:
        return "an absolute path"
    if ".." in parts:
        return "a path with '..'"
    if "" in parts or "." in parts:
        return "a path with an empty part or '.'"
    if "\0" in name or "\\" in name:
        return "a zero byte or a backslash"
    try:
        sizes = [len(os.fsencode(part)) for part in parts]
    except UnicodeEncodeError:
        return "a name that is not UTF-8"
    if max(sizes) > NAME_BYTES or sum(sizes) + len(sizes) > PATH_BYTES:
        return f"a name of more than {NAME_BYTES} bytes, or a path of {PATH_BYTES}"
    return None


def path_below(folder: Path, name: object, source: str | os.PathLike[str] | None = None) -> Path:
    """Return the path of a file below a folder that data of others name; otherwise raise CorruptArtifact.

    The error is about `source`, or the folder.
    """
    if problem := name_problem(name):
        raise CorruptArtifact(
            f"it names a file outside the folder, or one that cannot be: {problem}",
            kind="outside-folder",
            path=source or folder,
            found=shortened(repr(name)),
        )
    return folder / str(name)


@contextmanager
def system_errors_as(
    cls: type[IobenchError],
    problem: str,
    path: str | os.PathLike[str],
    *,
    kind: str | None = None,
    hint: str | None = None,
    exact: bool = False,
) -> Iterator[None]:
    """Convert an OSError in the body to `PROBLEM: REASON`, about its file, or `path` if `exact`."""
    try:
        yield
    except IobenchError:  # some of these are also an OSError
        raise
    except OSError as error:
        cause = f"{problem}: {reason(error)}"
        file = path if exact else error.filename or path
        if isinstance(error, PermissionError) and kind == "read-error":
            raise no_permission(cls, file) from error
        raise cls(cause, kind=kind, path=file, hint=hint) from error


def regular(file: Path) -> Path:
    """Return the path of a regular file; OSError if there is none, or if it is something else.

    Opening a pipe would block until a writer comes, and opening a device can have side effects.
    """
    if not stat.S_ISREG(os.stat(file).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(file))
    return file


def begins_with(file: Path, start: bytes) -> bool:
    """Return whether a regular file begins with these bytes; False if it cannot be read."""
    try:
        with open(regular(file), "rb") as opened:
            return opened.read(len(start)) == start
    except OSError:
        return False


def replace_file(path: Path, content: bytes, sync: bool = False) -> None:
    """Write a file that appears complete; OSError, about `path`, leaves what was there unchanged."""
    temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")  # as short as any name may be
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
