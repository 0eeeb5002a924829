"""Stderr of native code, which Python's sys.stderr does not reach."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def native_stderr_hidden() -> Iterator[None]:
    """Discard what is written to stderr meanwhile, by C++ code of libraries, too."""
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)
