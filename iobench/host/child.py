"""Child processes that may hang or die: each can be killed at once, with everything that it started.

A child is a new Python interpreter, or a fork of one that has imported the needed modules already
(`ForkServer`): importing torch takes seconds of processor time, a fork tenths of a second.

multiprocessing's own fork server is not used. A program has only one, so that a DataLoader's `forkserver`
workers would come from it, with torch imported and outside their case's tree of processes. It imports the
user's main script again. It has the working directory in its module path, so that a file `socket.py` in a
folder of untrusted data would run. It needs a temporary folder. It ends, with all children, if a fork fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from iobench.base.errors import RAISE_LIMIT, CannotStart

START_S = 120.0  # timeout for a process to start: importing torch takes some seconds
POLL_S = 0.05
MOST_POLL_S = 1.0  # time that one poll counts for at most: longer ones mean that this process was suspended
MAX_DESCRIPTORS = 8
_PR_SET_PDEATHSIG = 1


class ChildEnded(Exception):
    """The child has ended, perhaps in the middle of a message."""


class ChildHung(Exception):
    """The child has sent neither a message nor a heartbeat for `limit_s`."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(limit_s)
        self.limit_s = limit_s


class Child:
    """A child process that runs one function, with a connection to this process.

    The child leads a session of its own: processes that it starts are killed with it, and Ctrl-C does not
    reach it. It does not outlive the thread that started it. Its standard output is discarded.

    Parameters
    ----------
    function : str
        ``module:function``, called in the child with a Connection, a SharedCount for its heartbeats, and
        `descriptors`.
    *descriptors : int
        File descriptors that the child inherits. A new interpreter has them under the same numbers.
    server : ForkServer, optional
        The server to fork the child from; a new Python interpreter by default.
    environment : mapping of str to str, optional
        Environment variables of a new interpreter, in addition to those of this process.

    Raises
    ------
    CannotStart
        The kernel refused a process.
    """

    def __init__(
        self,
        function: str,
        *descriptors: int,
        server: ForkServer | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.heartbeats = SharedCount()
        self._started = False
        self._connection, theirs = Pipe()
        inherited = (theirs.fileno(), self.heartbeats.descriptor, *descriptors)
        try:
            with theirs:
                self._process = (
                    server.fork(function, inherited) if server else _spawn(function, inherited, environment)
                )
        except (ChildEnded, ChildHung, OSError) as error:
            self._connection.close()
            self.heartbeats.close()
            raise CannotStart(
                f"no process can be started: {getattr(error, 'strerror', None) or 'it ended at once'}",
                hint=RAISE_LIMIT,
            ) from error

    @property
    def pid(self) -> int:
        """Process id, which is the id of its process group as well."""
        return self._process.pid

    def send(self, message: object) -> None:
        """Send a message as a pickle."""
        with _ends():
            self._connection.send(message)

    def send_bytes(self, message: bytes) -> None:
        """Send a message."""
        with _ends():
            self._connection.send_bytes(message)

    def send_descriptors(self, descriptors: Sequence[int]) -> None:
        """Send file descriptors."""
        with _ends(), _channel(self._connection) as channel:
            socket.send_fds(channel, [b"."], list(descriptors))

    def wait(self, limit_s: float, idle: Callable[[], None] = lambda: None) -> None:
        """Wait for a message, and call `idle` between polls.

        Raises ChildEnded, or ChildHung if there is no message and no heartbeat for `limit_s`; the first one
        may take START_S. Time in which this process was suspended does not count.
        """
        seen, silent_s, before = self.heartbeats.count, 0.0, time.monotonic()
        while not self._poll():
            idle()
            count, now = self.heartbeats.count, time.monotonic()
            silent_s = silent_s + min(now - before, MOST_POLL_S) if count == seen else 0.0
            seen, before = count, now
            allowed_s = limit_s if self._started or count else max(limit_s, START_S)
            if silent_s > allowed_s:
                raise ChildHung(allowed_s)
        self._started = True

    def receive(self) -> Any:
        """Return the next message, which is unpickled: only from a child that reads no untrusted data."""
        with _ends():
            return self._connection.recv()

    def receive_bytes(self, most: int) -> bytes:
        """Return the next message; raises ValueError if it has more than `most` bytes."""
        with _ends():
            try:
                return self._connection.recv_bytes(most)
            except OSError as error:
                if self._connection.readable:
                    raise
                raise ValueError("too long a message") from error

    def receive_into(self, view: memoryview) -> None:
        """Receive what `send_raw` sends."""
        while view:
            with _ends():
                count = os.readv(self._connection.fileno(), [view])
            if not count:
                raise ChildEnded
            view = view[count:]

    def exit_code(self) -> int:
        """Wait for the end of the child and return its exit code, negative for a signal."""
        code = self._process.wait()
        assert code is not None
        return code

    def exit_reason(self) -> str:
        """Wait for the end of the child and describe it, for a sentence that begins with the process."""
        code = self.exit_code()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def end(self) -> None:
        """Kill the child and its children, and wait for its end."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._connection.close()
        self.heartbeats.close()

    def _poll(self) -> bool:
        """Return True if a message has arrived within POLL_S."""
        with _ends():
            if self._connection.poll(POLL_S):
                return True
            # its children may hold the other end open
            if self._process.poll() is not None and not self._connection.poll(0):
                raise ChildEnded
        return False


class ForkServer:
    """Starts processes that have imported `modules` already. The server starts with the first of them."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._server: Child | None = None

    def fork(self, function: str, descriptors: Sequence[int]) -> _Forked:
        """Start a child; see `Child`."""
        try:
            return self._fork(function, descriptors)
        except ChildEnded:  # the server was killed, as the kernel does when memory is short
            self.close()
            return self._fork(function, descriptors)

    def close(self) -> None:
        """Kill the server and all processes forked from it."""
        if self._server:
            self._server.end()
            self._server = None

    def _fork(self, function: str, descriptors: Sequence[int]) -> _Forked:
        if self._server is None:
            self._server = Child(f"{__name__}:serve_forks")
            self._server.send(self._modules)
        self._server.send(function)
        self._server.send_descriptors(descriptors)
        self._server.wait(START_S)
        pid = self._server.receive()
        if isinstance(pid, OSError):
            raise pid
        return _Forked(self._server, pid)


class _Forked:
    """A child of a fork server, with the methods of subprocess.Popen that are used here."""

    def __init__(self, server: Child, pid: int) -> None:
        self.pid, self._server = pid, server
        self._code: int | None = None

    def poll(self, flags: int = os.WNOHANG) -> int | None:
        if self._code is None:
            try:
                self._server.send((self.pid, flags))
                self._code = self._server.receive()
            except ChildEnded:  # the kernel has killed the server's children
                self._code = -signal.SIGKILL
        return self._code

    def wait(self) -> int | None:
        return self.poll(0)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class SharedCount:
    """A number in memory shared by two processes: heartbeats so far, of which each may be a batch."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = os.memfd_create("iobench-heartbeats") if descriptor is None else descriptor
        if descriptor is None:
            os.truncate(self.descriptor, mmap.PAGESIZE)
        self._map = mmap.mmap(self.descriptor, mmap.PAGESIZE)
        self._cell = memoryview(self._map).cast("q")

    @property
    def count(self) -> int:
        """The number."""
        return self._cell[0]

    @count.setter
    def count(self, value: int) -> None:
        self._cell[0] = value

    def close(self) -> None:
        """Release the memory."""
        self._cell.release()
        self._map.close()
        os.close(self.descriptor)


def send_raw(connection: Connection, view: memoryview) -> None:
    """Send bytes as they are, for a receiver that knows their number."""
    while view:
        view = view[os.write(connection.fileno(), view) :]


def child_main() -> None:
    """Run the function of a Child in the interpreter that it started."""
    parent, function, *descriptors = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _run(function, list(map(int, descriptors)), int(parent))


def serve_forks(connection: Connection, heartbeats: SharedCount) -> None:
    """Import the modules that the parent names; then fork, and report exit codes, on request."""
    for module in connection.recv():
        importlib.import_module(module)
    gc.freeze()  # a collection in a child would touch, and thereby copy, the shared objects
    server = os.getpid()
    if task := _serve_until_forked(connection):
        connection.close()
        heartbeats.close()
        os.setsid()
        _run(*task, server)


def _serve_until_forked(connection: Connection) -> tuple[str, list[int]] | None:
    """Serve requests; return the task in each forked child, and None in the server after its parent's end."""
    with contextlib.suppress(EOFError):
        while True:
            request = connection.recv()
            if not isinstance(request, str):
                connection.send(_exit_code(*request))
                continue
            with _channel(connection) as channel:
                descriptors = socket.recv_fds(channel, 1, MAX_DESCRIPTORS)[1]
            pid = _fork_or_error()
            if pid == 0:
                return request, descriptors
            for descriptor in descriptors:
                os.close(descriptor)
            connection.send(pid)
    return None


def _spawn(
    function: str, descriptors: Sequence[int], environment: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
    # the module path is set before any import: no module in the working directory may shadow another
    path = [os.path.abspath(folder) for folder in sys.path]
    start = f"import sys; sys.path[:] = {path!r}; from {__name__} import child_main; child_main()"
    return subprocess.Popen(
        [sys.executable, "-c", start, str(os.getpid()), function, *map(str, descriptors)],
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=os.environ | (environment or {}),
        start_new_session=True,
    )


def _run(function: str, descriptors: Sequence[int], parent: int) -> None:
    """Run `module:function` in this process, which the kernel kills when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before prctl
        return
    module, name = function.split(":")
    connection, heartbeats, *inherited = descriptors
    run = getattr(importlib.import_module(module), name)
    run(Connection(connection), SharedCount(heartbeats), *inherited)


def _fork_or_error() -> int | OSError:
    try:
        return os.fork()
    except OSError as error:  # too many processes, or no memory: this child fails, the server continues
        return error


def _exit_code(pid: int, flags: int) -> int | None:
    ended, status = os.waitpid(pid, flags)
    return os.waitstatus_to_exitcode(status) if ended else None


@contextlib.contextmanager
def _ends() -> Iterator[None]:
    """Turn the errors of a connection whose other end is gone into ChildEnded."""
    try:
        yield
    except (EOFError, OSError) as error:  # an OSError in the middle of a message
        raise ChildEnded from error


def _channel(connection: Connection) -> socket.socket:
    """Return the connection's socket, which can pass descriptors."""
    channel = socket.socket(fileno=os.dup(connection.fileno()))
    channel.settimeout(None)  # socket.setdefaulttimeout may have set another default
    return channel
