"""Fork server: a Python process that has imported the needed modules and is forked for each case.

Importing torch takes seconds of processor time, a fork tenths of a second. multiprocessing has a fork
server too, but it is shared by the whole program (a DataLoader's `forkserver` workers would come from it as
well) and it imports the user's main script again.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
from collections.abc import Sequence
from multiprocessing.connection import Connection

import psutil

from iobench.host.process import START_S, KillableProcess, run_in_child

MOST_DESCRIPTORS = 8


class ForkServer:
    """Starts processes that have imported `modules` already. The server starts with the first of them."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._server: KillableProcess | None = None

    def fork(self, function: str, descriptors: Sequence[int]) -> _Forked:
        """Start `module:function` in a fork; see `iobench.host.process.spawn_python`."""
        try:
            return self._fork(function, descriptors)
        except EOFError:  # the server was killed, as the kernel does when memory is short
            self.close()
            return self._fork(function, descriptors)

    def close(self) -> None:
        """Kill the server and all processes forked from it."""
        if self._server:
            self._server.end()
            self._server = None

    def _fork(self, function: str, descriptors: Sequence[int]) -> _Forked:
        if self._server is None:
            self._server = KillableProcess(serve)
            self._server.send(self._modules)
        self._server.send(("fork", function))
        try:
            with _channel(self._server.descriptor) as channel:
                socket.send_fds(channel, [b"."], list(descriptors))
        except ConnectionError as error:
            raise EOFError from error
        if not self._server.poll(START_S):
            raise EOFError
        pid = self._server.receive()
        if isinstance(pid, OSError):
            raise pid
        return _Forked(self._server, pid)


class _Forked:
    """A child of a fork server; see `iobench.host.process.ChildProcess`."""

    def __init__(self, server: KillableProcess, pid: int) -> None:
        self._server, self.pid = server, pid
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                if psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE:
                    return None
        return self.wait()

    def wait(self) -> int:
        if self._code is None:
            self._code = self._exit_code()
        return self._code

    def kill(self) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _exit_code(self) -> int:
        try:
            self._server.send(("wait", self.pid))
            code: int = self._server.receive()
        except (EOFError, OSError):  # the server has ended, and its children with it
            return -signal.SIGKILL
        return code


def serve(connection: Connection) -> None:
    """Import the modules that the parent names, then fork and wait for children on request."""
    for module in connection.recv():
        importlib.import_module(module)
    server = os.getpid()
    if task := _serve_until_forked(connection):
        connection.close()
        os.setsid()
        run_in_child(*task, server)


def _serve_until_forked(connection: Connection) -> tuple[str, list[int]] | None:
    """Serve requests; return the task in each forked child, and None in the server after its parent's end."""
    with contextlib.suppress(EOFError):
        while True:
            what, argument = connection.recv()
            if what == "wait":
                connection.send(os.waitstatus_to_exitcode(os.waitpid(argument, 0)[1]))
                continue
            descriptors = _received(connection)
            pid = _fork_or_error()
            if pid == 0:
                return argument, descriptors
            for descriptor in descriptors:
                os.close(descriptor)
            connection.send(pid)
    return None


def _fork_or_error() -> int | OSError:
    try:
        return os.fork()
    except OSError as error:  # too many processes, or no memory: this case fails, the server goes on
        return error


def _received(connection: Connection) -> list[int]:
    with _channel(connection.fileno()) as channel:
        return socket.recv_fds(channel, 1, MOST_DESCRIPTORS)[1]


def _channel(descriptor: int) -> socket.socket:
    channel = socket.socket(fileno=os.dup(descriptor))
    channel.settimeout(None)  # socket.setdefaulttimeout may have set another default
    return channel
