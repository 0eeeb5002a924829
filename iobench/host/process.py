"""Child processes that can be killed at once, with everything that they started."""

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

START_S = 120.0  # timeout for a process to start: importing torch takes some seconds
_PR_SET_PDEATHSIG = 1
_CHILD = "from iobench.host.process import child_main; child_main()"


class ChildProcess(Protocol):
    """A started process, with the methods of subprocess.Popen that are used here."""

    @property
    def pid(self) -> int:
        """Process id."""

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""

    def wait(self) -> int:
        """Wait for the end of the process and return its exit code, negative for a signal."""

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""


Spawn = Callable[[str, Sequence[int]], ChildProcess]


class KillableProcess:
    """A child process that runs one function, with a connection to this process.

    The child leads a session of its own: processes that it starts are killed with it, and Ctrl-C does not
    reach it. It does not outlive the thread that started it. Its standard output is discarded. Messages are
    pickled.

    Parameters
    ----------
    serve : callable
        A function of a module, called in the child with a Connection and `inherits`.
    *inherits : int
        File descriptors that the child inherits.
    start : callable, optional
        Starts the child; a new Python interpreter by default.
    """

    def __init__(self, serve: Callable[..., None], *inherits: int, start: Spawn | None = None) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            function = f"{serve.__module__}:{serve.__qualname__}"
            self._process = (start or spawn_python)(function, (theirs.fileno(), *inherits))

    @property
    def pid(self) -> int:
        """Process id, which is the id of its process group as well."""
        return self._process.pid

    @property
    def descriptor(self) -> int:
        """File descriptor of the connection, a socket."""
        return self._connection.fileno()

    def send(self, message: object) -> None:
        """Send a message; EOFError if the child has ended."""
        try:
            self._connection.send(message)
        except ConnectionError as error:
            raise EOFError from error

    def poll(self, seconds: float) -> bool:
        """Wait up to `seconds`; return True if a message has arrived. EOFError if the child has ended."""
        if self._connection.poll(seconds):
            return True
        # its children may hold the other end open
        if self._process.poll() is not None and not self._connection.poll(0):
            raise EOFError
        return False

    def receive(self) -> Any:
        """Return the next message; EOFError if the child has ended, perhaps in the middle of a message."""
        try:
            return self._connection.recv()
        except OSError as error:
            raise EOFError from error

    def exit_reason(self) -> str:
        """Wait for the end of the child and describe it, for a sentence that begins with the process."""
        code = self._process.wait()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def end(self) -> None:
        """Kill the child and its children, and wait for its end."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._connection.close()


def spawn_python(function: str, descriptors: Sequence[int]) -> ChildProcess:
    """Start a new Python interpreter that runs `module:function`.

    The first descriptor is the connection; the others are passed on as arguments.
    """
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(os.getpid()), function, *map(str, descriptors)],
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
    )


def child_main() -> None:
    """Run the function of a KillableProcess in the interpreter that it started."""
    parent, function, *descriptors = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run_in_child(function, list(map(int, descriptors)), int(parent))


def run_in_child(function: str, descriptors: Sequence[int], parent: int) -> None:
    """Run `module:function` in this process, which the kernel kills when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before prctl
        return
    module, name = function.split(":")
    connection, *inherited = descriptors
    getattr(importlib.import_module(module), name)(Connection(connection), *inherited)
