"""Regular files, files that are written whole or not at all, and the errors of the system about them."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from iobench.base.errors import IobenchError
from iobench.base.text import reason

TEMPORARY = ".tmp-"  # start of the names of unfinished files


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
        raise cls(cause, kind=kind, path=file, hint=hint) from error


def regular(file: Path) -> Path:
    """Return the path of a regular file; OSError if there is none, or if it is something else.

    Opening a pipe would block until a writer comes, and opening a device can have side effects.
    """
    if not stat.S_ISREG(os.stat(file).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(file))
    return file


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
