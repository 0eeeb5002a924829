"""Import of Lance without its log, which would repeat each error on stderr at length."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from iobench.base.errors import is_panic

os.environ.setdefault("LANCE_LOG", "error")  # Lance reads it on import

import lance

# Lance warns at each fork of a process that has imported it; the processes that read it are never forked.
warnings.filterwarnings("ignore", "lance is not fork-safe")

__all__ = ["lance", "without_panics"]

STDERR = 2
_captured = threading.Lock()


@contextmanager
def without_panics() -> Iterator[None]:
    """Suppress the message and backtrace that Lance prints on stderr before it raises a panic.

    Captures stderr meanwhile; the captured output is written afterwards unless there was a panic.
    """
    if not _captured.acquire(blocking=False):  # another thread captures stderr already
        yield
        return
    try:
        original, capture = os.dup(STDERR), os.memfd_create("stderr")
    except OSError:  # there is no stderr
        _captured.release()
        yield
        return
    panicked = False
    try:
        os.dup2(capture, STDERR)
        yield
    except BaseException as error:
        panicked = is_panic(error)
        raise
    finally:
        os.dup2(original, STDERR)
        output = b"" if panicked else os.pread(capture, os.fstat(capture).st_size, 0)
        os.close(original)
        os.close(capture)
        _captured.release()
        if output:
            os.write(STDERR, output)
