"""Standard streams of the process, with what native code and child processes write to them."""

from __future__ import annotations

import ctypes
import io
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from typing import TextIO

STDOUT, STDERR = 1, 2
_results: list[TextIO] = []  # the stream of results while stdout is redirected


def results() -> TextIO:
    """Return the stream for results: stdout, also while `stdout_to_stderr` redirects it."""
    return _results[-1] if _results else sys.stdout


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send to stderr what code that is not iobench's writes to stdout meanwhile; only `results` stays there.

    It works for Python's `print`, for native code and for child processes.
    """
    if _results:
        yield
        return
    ours = sys.stdout
    with ExitStack() as stack:
        stack.callback(_flush)
        _flush()
        with suppress(OSError):  # there is no stdout or no stderr
            original = os.dup(STDOUT)
            stack.callback(os.close, original)
            os.dup2(STDERR, STDOUT)
            stack.callback(os.dup2, original, STDOUT)
            stack.callback(_flush)
            if _descriptor(ours) == STDOUT:
                raw = open(original, "wb", closefd=False)  # noqa: SIM115 - its text stream closes it
                ours = io.TextIOWrapper(raw, ours.encoding, ours.errors)
                stack.callback(_close, ours)
        _results.append(ours)
        stack.callback(_results.clear)
        stack.enter_context(redirect_stdout(sys.stderr))
        yield


@contextmanager
def native_stderr_hidden() -> Iterator[None]:
    """Discard what is written to stderr meanwhile, by C++ code of libraries, too."""
    saved, nowhere = os.dup(STDERR), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, STDERR)
        yield
    finally:
        os.dup2(saved, STDERR)
        os.close(saved)
        os.close(nowhere)


def _descriptor(stream: TextIO) -> int | None:
    """Return the file descriptor of a stream; None for one in memory or of a notebook."""
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def _flush() -> None:
    """Write what Python and the C library hold back."""
    for stream in (sys.stdout, sys.__stdout__):
        with suppress(OSError, ValueError, AttributeError):  # closed, or its reader is gone
            stream.flush()  # type: ignore[union-attr]
    ctypes.CDLL(None).fflush(None)


def _close(stream: TextIO) -> None:
    with suppress(OSError):  # its reader is gone
        stream.close()
