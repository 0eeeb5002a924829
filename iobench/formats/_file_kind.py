"""Files that others may have put there: nothing but a regular one is ever opened."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def regular(file: Path) -> Path:
    """The path of a regular file; OSError where there is none, or something else.

    To open a pipe would be to wait for somebody who writes, and to open a device can do something.
    """
    if not stat.S_ISREG(os.stat(file).st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(file))
    return file
