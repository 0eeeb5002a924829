"""Child processes that may hang or die: each can be killed at once, with everything that it started.

A child is a new Python interpreter (`spawn_python`), or a fork of one that has imported the needed modules
already (`ForkServer`).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import mmap
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import MappingProxyType
from typing import Any

from iobench.base.errors import CaseDied, SystemRefused
from iobench.host.system_errors import cannot_start

CHECK_S = 0.5
# The watchdog ends with its parent, because that closes the pipe. Ctrl-Z in a terminal stops the whole job,
# the watchdog included, which then continues with it.
_WATCHDOG = f"""
import os, select, sys
parent, allowed, stopped = int(sys.argv[1]), float(sys.argv[2]), 0.0
while not select.select([0], [], [], {CHECK_S})[0]:
    with open(f"/proc/{{parent}}/stat") as file:
        state = file.read().rpartition(")")[2].split()[0]
    stopped = stopped + {CHECK_S} if state == "T" else 0.0
    if stopped > allowed:
        os.kill(parent, 9)
"""


def kill_when_stopped(seconds: float) -> subprocess.Popen[bytes]:
    """Start a small process that kills this one once it has been stopped for `seconds`."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WATCHDOG, str(os.getpid()), str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


START_S = 120.0  # timeout for a process to start: importing torch takes some seconds
POLL_S = 0.05
MOST_POLL_S = 1.0  # time that one poll counts for at most: longer ones mean that this process was suspended
_PR_SET_PDEATHSIG = 1


Start = Callable[[str, Sequence[int]], "subprocess.Popen[bytes] | _Forked"]


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
    reach it. It does not outlive the thread that started it. Its standard output is discarded, unless it
    redirects it.

    `function` is ``module:function``, called in the child with a Connection and a SharedCount for its
    heartbeats. `start` starts the process, by default a new Python interpreter. Raises SystemRefused if the
    kernel refuses a process.
    """

    def __init__(self, function: str, start: Start | None = None) -> None:
        self.heartbeats, self._started = SharedCount(), False
        self._connection, theirs = Pipe()
        try:
            with theirs:
                descriptors = (theirs.fileno(), self.heartbeats.descriptor)
                self._process = (start or spawn_python)(function, descriptors)
        except (ChildEnded, ChildHung, OSError) as error:
            self._connection.close()
            self.heartbeats.close()
            if isinstance(error, SystemRefused):  # of the fork server
                raise
            raise cannot_start(getattr(error, "strerror", None) or "it ended at once") from error

    @property
    def pid(self) -> int:
        """Process id, which is the id of its process group as well."""
        return self._process.pid

    @property
    def descriptor(self) -> int:
        """File descriptor of the connection, a socket."""
        return self._connection.fileno()

    def send(self, message: object) -> None:
        """Send a message as a pickle."""
        # Not `Connection.send`: the error of a closed pipe would hold a view of its io.BytesIO, and Python
        # 3.12 crashes when it collects the two as garbage.
        self.send_bytes(pickle.dumps(message))

    def send_bytes(self, message: bytes) -> None:
        """Send a message."""
        with _ends():
            self._connection.send_bytes(message)

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

    def reply(self, limit_s: float, idle: Callable[[], None] = lambda: None) -> Any:
        """Wait for the next object that the function sends, an answer to one that was sent.

        Raises an answer that is an error, and CaseDied if the process ended, or was silent for `limit_s`.
        """
        try:
            self.wait(limit_s, idle)
            answer = self.receive()
        except ChildEnded:
            problem = f"its process {self.exit_reason()}: the disk, the file or a library failed"
            raise CaseDied(problem, kind="process-ended") from None
        except ChildHung:
            problem = f"no batch came for {limit_s:g} s, so its process was ended"
            raise CaseDied(problem, kind="timeout", hint="allow more time with --timeout") from None
        if isinstance(answer, Exception):
            raise answer
        return answer

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
        return self._process.wait()

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
    run_in_child(function, list(map(int, descriptors)), int(parent))


def spawn_python(
    function: str, descriptors: Sequence[int], environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.Popen[bytes]:
    """Start a new Python interpreter that runs `function`, with further environment variables."""
    # the module path is set before any import: no module in the working directory may shadow another
    path = [os.path.abspath(folder) for folder in sys.path]
    start = f"import sys; sys.path[:] = {path!r}; from {__name__} import child_main; child_main()"
    return subprocess.Popen(
        [sys.executable, "-c", start, str(os.getpid()), function, *map(str, descriptors)],
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=os.environ | dict(environment),
        start_new_session=True,
    )


def run_in_child(function: str, descriptors: Sequence[int], parent: int) -> None:
    """Run `module:function` in this process, which the kernel kills when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before prctl
        return
    module, name = function.split(":")
    connection, heartbeats, *inherited = descriptors
    run = getattr(importlib.import_module(module), name)
    run(Connection(connection), SharedCount(heartbeats), *inherited)


@contextlib.contextmanager
def _ends() -> Iterator[None]:
    """Turn the errors of a connection whose other end is gone into ChildEnded."""
    try:
        yield
    except (EOFError, OSError) as error:  # an OSError in the middle of a message
        raise ChildEnded from error


MAX_DESCRIPTORS = 8


class ForkServer:
    """A Python process that has imported `modules` and is forked for each child; it starts with the first.

    Importing torch takes seconds of processor time, a fork tenths of a second. multiprocessing's own fork
    server is not used. A program has only one, so that a DataLoader's `forkserver` workers would come from
    it, with torch imported and outside their case's tree of processes. It imports the user's main script
    again. It needs a temporary folder. It ends, with all its children and a traceback, if a fork fails.
    """

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._server: Child | None = None

    def fork(self, function: str, descriptors: Sequence[int]) -> _Forked:
        """Start a child that runs `function`: a `start` of `Child`."""
        try:
            return self._fork(function, descriptors)
        except (ChildEnded, ConnectionError):  # killed, as the kernel does when memory is short
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
        with _channel(self._server.descriptor) as channel:
            socket.send_fds(channel, [b"."], list(descriptors))
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

    def wait(self) -> int:
        code = self.poll(0)
        assert code is not None
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def serve_forks(connection: Connection, heartbeats: SharedCount) -> None:
    """Import the modules that the parent names; then fork, and report exit codes, on request."""
    for module in connection.recv():
        importlib.import_module(module)
    server = os.getpid()
    if task := _serve_until_forked(connection):
        connection.close()
        heartbeats.close()
        os.setsid()
        run_in_child(*task, server)


def _serve_until_forked(connection: Connection) -> tuple[str, list[int]] | None:
    """Serve requests; return the task in each forked child, and None in the server after its parent's end."""
    with contextlib.suppress(EOFError):
        while True:
            request = connection.recv()
            if not isinstance(request, str):
                ended, status = os.waitpid(*request)
                connection.send(os.waitstatus_to_exitcode(status) if ended else None)
                continue
            with _channel(connection.fileno()) as channel:
                descriptors = socket.recv_fds(channel, 1, MAX_DESCRIPTORS)[1]
            pid: int | OSError
            try:
                pid = os.fork()
            except OSError as error:  # of processes or memory: this child fails, the server continues
                pid = error
            if pid == 0:
                return request, descriptors
            for descriptor in descriptors:
                os.close(descriptor)
            connection.send(pid)
    return None


def _channel(descriptor: int) -> socket.socket:
    """Return the socket of a connection, which can pass descriptors."""
    channel = socket.socket(fileno=os.dup(descriptor))
    channel.settimeout(None)  # socket.setdefaulttimeout may have set another default
    return channel
