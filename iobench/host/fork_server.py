"""Fork server: a Python process that has imported the needed modules and is forked for each case.

Importing torch takes seconds of processor time, a fork tenths of a second. multiprocessing's own fork server
is not used. A program has only one, so that a DataLoader's `forkserver` workers would come from it, with
torch imported and outside their case's tree of processes. It imports the user's main script again. It needs
a temporary folder. It ends, with all its children and a traceback, if a fork fails.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
from collections.abc import Sequence
from multiprocessing.connection import Connection

from iobench.host.child import START_S, Child, ChildEnded, SharedCount, run_in_child

MAX_DESCRIPTORS = 8


class ForkServer:
    """Starts processes that have imported `modules` already. The server starts with the first of them."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._server: Child | None = None

    def fork(self, function: str, descriptors: Sequence[int]) -> _Forked:
        """Start a child that runs `function`: a `start` of `Child`."""
        try:
            return self._fork(function, descriptors)
        except (
            ChildEnded,
            ConnectionError,
        ):  # killed, as the kernel does when memory is short
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
                connection.send(_exit_code(*request))
                continue
            with _channel(connection.fileno()) as channel:
                descriptors = socket.recv_fds(channel, 1, MAX_DESCRIPTORS)[1]
            pid = _fork_or_error()
            if pid == 0:
                return request, descriptors
            for descriptor in descriptors:
                os.close(descriptor)
            connection.send(pid)
    return None


def _fork_or_error() -> int | OSError:
    try:
        return os.fork()
    except OSError as error:  # too many processes, or no memory: this child fails, the server continues
        return error


def _exit_code(pid: int, flags: int) -> int | None:
    ended, status = os.waitpid(pid, flags)
    return os.waitstatus_to_exitcode(status) if ended else None


def _channel(descriptor: int) -> socket.socket:
    """Return the socket of a connection, which can pass descriptors."""
    channel = socket.socket(fileno=os.dup(descriptor))
    channel.settimeout(None)  # socket.setdefaulttimeout may have set another default
    return channel
