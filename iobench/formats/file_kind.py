"""Check that a path is a regular file before it is opened."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def regular(file: Path) -> Path:
    """Return the path of a regular file; OSError if there is none, or if it is something else.

    Opening a pipe would block until a writer comes, and opening a device can have side effects.
    """
    if not stat.S_ISREG(os.stat(file).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(file))
    return file
