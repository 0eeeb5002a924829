"""Import of Lance without its log, which would repeat each error on stderr at length, and its errors."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from iobench.base.errors import CorruptArtifact, IobenchError, is_panic
from iobench.contrib.formats.shared.arrow_columns import DAMAGE

os.environ.setdefault("LANCE_LOG", "error")  # Lance reads it on import

import lance

# Lance warns at each fork of a process that has imported it; the processes that read it are never forked.
warnings.filterwarnings("ignore", "lance is not fork-safe")

__all__ = ["errors_as", "lance"]

STDERR = 2
_captured = threading.Lock()


@contextmanager
def errors_as(converted: Callable[[BaseException], IobenchError]) -> Iterator[None]:
    """Raise what `converted` returns for errors and panics of Lance, CorruptArtifact as it is."""
    try:
        with _without_panics():
            yield
    except CorruptArtifact:
        raise
    except BaseException as error:
        if not (is_panic(error) or isinstance(error, DAMAGE)):
            raise
        raise converted(error) from None  # its text may repeat what a store answered


@contextmanager
def _without_panics() -> Iterator[None]:
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
