"""Run commands of iobench in new sessions, from a new interpreter or from a preloaded fork server."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from eval.faults.children import wait_for

TIMEOUT_S = 60
PR_SET_CHILD_SUBREAPER = 36  # of <sys/prctl.h>
# reports that Python has started: a signal before that would not reach iobench
NEW_INTERPRETER = "import os; os.write(3, b'x'); from iobench.__main__ import main; main()"
# the forked command leaves the loop, so that it ends as a script does, with its interpreter
FORK_SERVER = """
import json, os, signal, sys
from eval.faults import preload
from iobench.__main__ import _leave, main

preload.load()
preload.shorten_rounds()
signal.signal(signal.SIGINT, _leave)  # as `main` does first
print("ready", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    between = os.fork()
    if between:
        os.waitpid(between, 0)
    elif os.fork():
        os._exit(0)  # makes the command a child of the client, its subreaper
    else:
        os.setsid()
        reply, null = os.dup(1), os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.dup2(os.open(request["stderr"], os.O_WRONLY), 2)
        sys.argv = ["iobench", *request["arguments"]]
        os.write(reply, b"%d\\n" % os.getpid())
        os.close(reply)
        break
else:
    sys.exit()
main()
"""

StartCommand = Callable[[Sequence[str], Path], int]  # arguments and the file for stderr → process id


@dataclass(frozen=True)
class CommandResult:
    """The exit code of a command, its stderr, the processes that it left running, and its duration."""

    code: int | str  # or `HANGS`
    output: str
    left: list[str]
    seconds: float


def command(
    start: StartCommand, arguments: Sequence[str], at_s: float | None = None, group: bool = False
) -> CommandResult:
    """Run a command and interrupt it, alone or with its process group, after so many seconds."""
    with tempfile.NamedTemporaryFile("r", errors="backslashreplace") as stderr:
        pid = start(arguments, Path(stderr.name))
        began = time.monotonic()
        interrupt = partial(os.killpg if group else os.kill, pid, signal.SIGINT)
        code = wait_for(pid, None if at_s is None else (at_s, interrupt), TIMEOUT_S)
        seconds = time.monotonic() - began
        return CommandResult(code, stderr.read(), _left_running(pid), seconds)


def start_new(arguments: Sequence[str], stderr: Path) -> int:
    """Start a command in a new interpreter, so that its imports can be interrupted, too."""
    read_end, write_end = os.pipe()
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, str(stderr), os.O_WRONLY, 0),
        (os.POSIX_SPAWN_DUP2, write_end, 3),
    ]
    line = [sys.executable, "-c", NEW_INTERPRETER, *arguments]
    pid = os.posix_spawn(sys.executable, line, os.environ, file_actions=files, setsid=True)
    os.close(write_end)
    os.read(read_end, 1)
    os.close(read_end)
    return pid


class ForkServer:
    """Starts commands within milliseconds, as forks of a process with everything imported."""

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._lock = threading.Lock()
        began = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-c", FORK_SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._read_line()
        self.import_s = time.monotonic() - began

    def __call__(self, arguments: Sequence[str], stderr: Path) -> int:
        """Start a command."""
        assert self._process.stdin is not None
        with self._lock:
            print(json.dumps({"arguments": list(arguments), "stderr": str(stderr)}), file=self._process.stdin)
            self._process.stdin.flush()
            return int(self._read_line())

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def close(self) -> None:
        """End the server, after all of its commands."""
        self._process.communicate()


def _left_running(session: int) -> list[str]:
    """Return the commands of a session's processes that still run after a second."""
    for _ in range(20):
        left = []
        for process in psutil.process_iter(["pid", "cmdline", "status"]):
            try:
                if os.getsid(process.pid) == session and process.info["status"] != psutil.STATUS_ZOMBIE:
                    left.append(" ".join(process.info["cmdline"] or ["?"])[:200])
            except (ProcessLookupError, PermissionError):
                continue
        if not left:
            break
        time.sleep(0.05)
    return left
