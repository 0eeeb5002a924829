"""Commands in sessions of their own, from a new interpreter or from one that has everything imported."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

PATIENCE_S = 60
PR_SET_CHILD_SUBREAPER = 36  # of <sys/prctl.h>
# tells that Python has started: what comes before that is none of ours
NEW = "import os; os.write(3, b'x'); from iobench.__main__ import main; main()"
# each command is forked, and comes back out of the loop to end as a script does, its interpreter with it
READY = """
import json, os, signal, sys
from _faults import ready
from iobench.__main__ import _leave, main

ready.load()
ready.hasten()
signal.signal(signal.SIGINT, _leave)  # as `main` does first of all
print("ready", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    between = os.fork()
    if between:
        os.waitpid(between, 0)
    elif os.fork():
        os._exit(0)  # so that the command becomes a child of who asked for it
    else:
        os.setsid()
        told, nothing = os.dup(1), os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        os.dup2(os.open(asked["said"], os.O_WRONLY), 2)
        sys.argv = ["iobench", *asked["arguments"]]
        os.write(told, b"%d\\n" % os.getpid())
        os.close(told)
        break
else:
    sys.exit()
main()
"""

Start = Callable[[Sequence[str], Path], int]  # arguments, and where stderr goes → process id


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, what it said, what it left running, and after how long."""

    code: int
    said: str
    left: list[str]
    seconds: float


def command(start: Start, arguments: Sequence[str], at_s: float | None = None, group: bool = False) -> Ended:
    """Run a command, and interrupt it, alone or with its group, after so many seconds."""
    with tempfile.NamedTemporaryFile("r", errors="backslashreplace") as said:
        pid = start(arguments, Path(said.name))
        began = time.monotonic()
        process = os.pidfd_open(pid)
        if at_s is not None and not select.select([process], [], [], at_s)[0]:
            (os.killpg if group else os.kill)(pid, signal.SIGINT)
        hangs = not select.select([process], [], [], PATIENCE_S)[0]
        if hangs:
            os.kill(pid, signal.SIGKILL)
        os.close(process)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        seconds = time.monotonic() - began
        return Ended(code, said.read() + "\nit hangs" * hangs, _left(pid), seconds)


def new(arguments: Sequence[str], said: Path) -> int:
    """Start a command as a person does: its imports are part of it."""
    reading, writing = os.pipe()
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, str(said), os.O_WRONLY, 0),
        (os.POSIX_SPAWN_DUP2, writing, 3),
    ]
    line = [sys.executable, "-c", NEW, *arguments]
    pid = os.posix_spawn(sys.executable, line, os.environ, file_actions=files, setsid=True)
    os.close(writing)
    os.read(reading, 1)
    os.close(reading)
    return pid


class Ready:
    """Starts commands in a moment, in processes that have been forked from one with everything imported."""

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._alone = threading.Lock()
        began = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-c", READY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._answer()
        self.import_s = time.monotonic() - began

    def __call__(self, arguments: Sequence[str], said: Path) -> int:
        """Start a command."""
        assert self._process.stdin is not None
        with self._alone:
            print(json.dumps({"arguments": list(arguments), "said": str(said)}), file=self._process.stdin)
            self._process.stdin.flush()
            return int(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def close(self) -> None:
        """End it; nothing is to be running any more."""
        self._process.communicate()


def _left(session: int) -> list[str]:
    """The commands of processes of a session that are there yet after a second."""
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
