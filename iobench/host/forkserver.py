"""A Python that has imported what many processes need, and is forked for each of them.

Importing torch takes seconds of a processor, a fork tenths of one. It is what multiprocessing's own fork
server does, which is one for the whole program (a DataLoader's `forkserver` workers would come out of
it, too), and imports the user's main script again.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
from collections.abc import Sequence
from multiprocessing.connection import Connection

import psutil

from iobench.host.memory import copy_inherited
from iobench.host.process import START_S, KillableProcess, run

MOST_DESCRIPTORS = 8


class ForkServer:
    """Processes that begin with modules that are there already; it is started when the first is asked for."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._server: KillableProcess | None = None

    def fork(self, function: str, descriptors: Sequence[int]) -> _Forked:
        """Start `module:function` in a fork; see `iobench.host.process.fresh`."""
        try:
            return self._fork(function, descriptors)
        except EOFError:  # somebody ended it, as the kernel does when memory is short
            self.close()
            return self._fork(function, descriptors)

    def close(self) -> None:
        """End it, and with it all that it was forked for."""
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
    """A child of a fork server; see `iobench.host.process.Child`."""

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
            self._code = self._told()
        return self._code

    def kill(self) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _told(self) -> int:
        try:
            self._server.send(("wait", self.pid))
            code: int = self._server.receive()
        except (EOFError, OSError):  # it has gone, and its children end with it
            return -signal.SIGKILL
        return code


def serve(connection: Connection) -> None:
    """Import what the parent names, then fork and wait for children as it says."""
    for module in connection.recv():
        importlib.import_module(module)
    gc.freeze()  # no collection in a child touches, and so copies, what all share
    server = os.getpid()
    if wanted := _wanted_of_child(connection):
        connection.close()
        os.setsid()
        copy_inherited()
        run(*wanted, server)


def _wanted_of_child(connection: Connection) -> tuple[str, list[int]] | None:
    """In each forked child what it has to run; in the server, once its parent has gone, None."""
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
    except OSError as error:  # too many processes, or no memory: one case's failure, not that of all
        return error


def _received(connection: Connection) -> list[int]:
    with _channel(connection.fileno()) as channel:
        return socket.recv_fds(channel, 1, MOST_DESCRIPTORS)[1]


def _channel(descriptor: int) -> socket.socket:
    channel = socket.socket(fileno=os.dup(descriptor))
    channel.settimeout(None)  # which somebody may have made another default of
    return channel
