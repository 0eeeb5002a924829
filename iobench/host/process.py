"""A process of our own that can be ended at once, with everything that it started."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

START_S = 120.0  # for one to begin: importing torch takes some seconds
_PR_SET_PDEATHSIG = 1
_CHILD = "from iobench.host.process import begin; begin()"


class KillableProcess:
    """A fresh Python that runs one function of a module, which is given a connection to this process.

    It leads a session of its own: what it starts is ended with it, and Ctrl-C does not reach it. It
    does not outlive the thread that started it. Its standard output goes nowhere. Messages are
    pickled; descriptors that it `inherits` are further arguments of the function.
    """

    def __init__(self, serve: Callable[..., None], *inherits: int) -> None:
        self._connection, theirs = Pipe()
        descriptors = (theirs.fileno(), *inherits)
        arguments = (os.getpid(), serve.__module__, serve.__qualname__, *descriptors)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, *map(str, arguments)],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
        )
        theirs.close()

    @property
    def pid(self) -> int:
        """Its number, which is that of its process group, too."""
        return self._process.pid

    def send(self, message: object) -> None:
        """Tell it something; EOFError where it has ended."""
        try:
            self._connection.send(message)
        except ConnectionError as error:
            raise EOFError from error

    def poll(self, seconds: float) -> bool:
        """Whether it has said something, after waiting for so long; EOFError where it has ended instead."""
        if self._connection.poll(seconds):
            return True
        # its children may hold the other end open
        if self._process.poll() is not None and not self._connection.poll(0):
            raise EOFError
        return False

    def receive(self) -> Any:
        """What it said; EOFError where it has ended, perhaps in the middle of a message."""
        try:
            return self._connection.recv()
        except OSError as error:
            raise EOFError from error

    def death(self) -> str:
        """How it ended, in words, once it has."""
        code = self._process.wait()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def end(self) -> None:
        """Kill it with its children, and wait for its end."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._connection.close()


def begin() -> None:
    """Run what a KillableProcess was made for, in the process that it started."""
    parent, module, name, connection, *inherited = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it had gone before
        return
    serve = getattr(importlib.import_module(module), name)
    serve(Connection(int(connection)), *map(int, inherited))
