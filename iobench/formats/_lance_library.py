"""Lance, which says what goes wrong by its errors: its log on stderr would say it once more, at length."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

os.environ.setdefault("LANCE_LOG", "error")  # read when it is imported

import lance

# said at each fork of a process that has imported it: those that read it are never forked
warnings.filterwarnings("ignore", "lance is not fork-safe")

__all__ = ["is_panic", "lance", "without_panics"]

STDERR = 2
_holding = threading.Lock()


def is_panic(error: BaseException) -> bool:
    """Whether Lance itself broke down: a BaseException of a class that no module exports."""
    return type(error).__name__ == "PanicException"


@contextmanager
def without_panics() -> Iterator[None]:
    """Keep from stderr what Lance prints of a panic, with a backtrace, before it raises it.

    All that comes there meanwhile is held back, and follows unless there was a panic.
    """
    if not _holding.acquire(blocking=False):  # it is held back already
        yield
        return
    try:
        kept, held = os.dup(STDERR), os.memfd_create("stderr")
    except OSError:  # there is no stderr
        _holding.release()
        yield
        return
    panicked = False
    try:
        os.dup2(held, STDERR)
        yield
    except BaseException as error:
        panicked = is_panic(error)
        raise
    finally:
        os.dup2(kept, STDERR)
        said = b"" if panicked else os.pread(held, os.fstat(held).st_size, 0)
        os.close(kept)
        os.close(held)
        _holding.release()
        if said:
            os.write(STDERR, said)
