"""Child processes of iobench forked from one process of the whole test run: none imports libraries again.

A new interpreter takes 0.7 s of processor time for what the sandbox imports. A forked child has the parent's
working directory, environment, module path, user and numbers of descriptors, as a new interpreter would.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading

from iobench.host.child import Child, ForkServer, spawn_python


class ForkedChildren:
    """Starts children in place of `spawn_python`; one at a time, whatever the thread."""

    def __init__(self, *modules):
        self._lock, self._server = threading.RLock(), ForkServer(__name__, *modules)
        self._begun = False

    def start(self, function, descriptors, environment=None):
        environment = environment or {}
        if not self._begun and threading.current_thread() is not threading.main_thread():
            return spawn_python(function, descriptors, environment)  # a server ends with its first thread
        self._begun = True
        asked = {
            "function": function,
            "descriptors": descriptors,
            "folder": os.getcwd(),
            "path": [os.path.abspath(folder) for folder in sys.path],
            "environment": {**os.environ, **environment},
            "user": os.geteuid(),
        }
        memory = os.memfd_create("iobench-forked")
        try:
            os.write(memory, json.dumps(asked).encode())
            with self._lock:
                return _Locked(self._server.fork(f"{__name__}:run", [*descriptors, memory]), self._lock)
        finally:
            os.close(memory)

    def python(self, code, *arguments, cwd=None):
        """Run `python -c code arguments` in a child that has imported the libraries; return how it ended."""
        with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
            child = Child(f"{__name__}:run_code", start=self.start)
            child.send((code, [str(one) for one in arguments], cwd or os.getcwd(), out.name, err.name))
            returned = child.exit_code()
            child.end()
            return subprocess.CompletedProcess(arguments, returned, out.read(), err.read())

    def close(self):
        self._server.close()


class _Locked:
    """A forked child; only one thread at a time speaks to the server about it."""

    def __init__(self, process, lock):
        self.pid, self._process, self._lock = process.pid, process, lock

    def poll(self):
        with self._lock:
            return self._process.poll()

    def wait(self):
        with self._lock:
            return self._process.wait()

    def kill(self):
        with self._lock:
            self._process.kill()


def run(connection, heartbeats, *descriptors):
    """Become what was asked for, and run the function."""
    *inherited, memory = descriptors
    asked = json.loads(os.pread(memory, 1 << 20, 0))
    own = asked["descriptors"][2:]  # after those of the connection and the heartbeats
    assert not {connection.fileno(), heartbeats.descriptor, *inherited} & set(own), "a number is taken"
    for mine, number in zip(inherited, own, strict=True):
        os.dup2(mine, number)
        os.close(mine)
    os.close(memory)
    os.chdir(asked["folder"])
    sys.path[:] = asked["path"]
    os.environ.clear()
    os.environ.update(asked["environment"])
    if asked["user"] != os.geteuid():
        os.seteuid(asked["user"])
    module, name = asked["function"].split(":")
    getattr(importlib.import_module(module), name)(connection, heartbeats, *own)


def run_code(connection, heartbeats):
    """Become `python -c`, with files as the standard streams."""
    code, arguments, folder, *streams = connection.recv()
    for number, path in enumerate(streams, 1):
        opened = os.open(path, os.O_WRONLY)
        os.dup2(opened, number)
        os.close(opened)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    sys.argv = ["-c", *arguments]
    exec(code, {"__name__": "__main__"})
