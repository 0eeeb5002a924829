"""A process of our own that can be ended at once, with everything that it started."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol

START_S = 120.0  # for one to begin: importing torch takes some seconds
_PR_SET_PDEATHSIG = 1
_CHILD = "from iobench.host.process import begin; begin()"


class Child(Protocol):
    """A process that was started, as subprocess.Popen has it."""

    @property
    def pid(self) -> int:
        """Its number."""

    def poll(self) -> int | None:
        """Its exit code once it has ended, negative for a signal."""

    def wait(self) -> int:
        """Its exit code, when it has ended."""

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""


Start = Callable[[str, Sequence[int]], Child]


class KillableProcess:
    """A process that runs one function of a module, which is given a connection to this process.

    It is a fresh Python, or what `start` makes. It leads a session of its own: what it starts is ended
    with it, and Ctrl-C does not reach it. It does not outlive the thread that started it. Its standard
    output goes nowhere. Messages are pickled; descriptors that it `inherits` are further arguments of the
    function.
    """

    def __init__(self, serve: Callable[..., None], *inherits: int, start: Start | None = None) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            function = f"{serve.__module__}:{serve.__qualname__}"
            self._process = (start or fresh)(function, (theirs.fileno(), *inherits))

    @property
    def pid(self) -> int:
        """Its number, which is that of its process group, too."""
        return self._process.pid

    @property
    def descriptor(self) -> int:
        """That of the connection, which is a socket."""
        return self._connection.fileno()

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


def fresh(function: str, descriptors: Sequence[int]) -> Child:
    """A fresh Python that runs `module:function`, given a connection by its descriptor, and the others."""
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(os.getpid()), function, *map(str, descriptors)],
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
    )


def begin() -> None:
    """Run what a KillableProcess was made for, in the fresh Python that it started."""
    parent, function, *descriptors = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run(function, list(map(int, descriptors)), int(parent))


def run(function: str, descriptors: Sequence[int], parent: int) -> None:
    """Run `module:function` in this process, which ends when its parent does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it had gone before
        return
    module, name = function.split(":")
    connection, *inherited = descriptors
    getattr(importlib.import_module(module), name)(Connection(connection), *inherited)
