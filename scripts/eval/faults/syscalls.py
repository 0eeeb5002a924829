"""Fault injection at the system calls of a process that change a disk."""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eval.faults.power import Disk

NAME_SURVIVAL = {
    "power loss": 0.0,
    "power loss, names kept": 1.0,
    **{f"power loss, random names {number}": 0.5 for number in range(1, 5)},
}
MODES = ("killed", "refused", "interrupted", *NAME_SURVIVAL)
SYSCALLS = (
    "rename replace unlink remove rmdir mkdir link symlink truncate ftruncate fsync fdatasync write".split()
)


class SyscallInterceptor:
    """Counts the system calls of this process that change a disk, and injects a fault at call `at`.

    killed: SIGKILL before the call. refused: the call fails. interrupted: Ctrl-C right after the call.
    power loss: as killed, and `disk` loses what was not synced.
    """

    def __init__(self, mode: str = "killed", at: int | None = None, disk: Disk | None = None) -> None:
        self.mode, self.at, self.disk, self.count = mode, at, disk, 0

    def install(self) -> None:
        """Wrap the functions for the rest of the process's life."""
        for name in SYSCALLS:
            setattr(os, name, self._counted(getattr(os, name)))
        os.open = self._counted(os.open, lambda path, flags, *_, **__: flags & (os.O_WRONLY | os.O_RDWR))
        opened = self._counted(builtins.open, lambda file, mode="r", *_, **__: set(mode) & set("wax+"))
        builtins.open = io.open = opened

    def _counted(
        self, call: Callable[..., Any], changes: Callable[..., Any] = lambda *_, **__: True
    ) -> Callable[..., Any]:
        @functools.wraps(call)
        def counted(*arguments: Any, **named: Any) -> Any:
            if not changes(*arguments, **named):
                return call(*arguments, **named)
            self.count += 1
            injected = self.count == self.at
            if injected:
                self._before(arguments)
            try:
                result = call(*arguments, **named)
            finally:
                if injected:
                    _interrupt()
            if self.disk is not None and call.__name__ in ("fsync", "fdatasync"):
                self.disk.synced(arguments[0])
            return result

        return counted

    def _before(self, arguments: tuple[Any, ...]) -> None:
        self.at = None
        if self.mode == "refused":
            path = arguments[0] if isinstance(arguments[0], (str, os.PathLike)) else None
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        if self.disk is not None:
            _fail_power(self.disk)
        if self.mode == "killed":
            os.kill(os.getpid(), signal.SIGKILL)


def _fail_power(disk: Disk) -> None:
    """Kill this process and reduce the disk to its durable state.

    A child does so once all threads are stopped, because any of them may be writing.
    """
    process = os.getpid()
    if child := os.fork():
        os.waitpid(child, 0)
        raise RuntimeError("the power failure could not be simulated")
    try:
        os.kill(process, signal.SIGSTOP)
        while any(_state(task) not in "Tt" for task in Path(f"/proc/{process}/task").iterdir()):
            time.sleep(0.0001)
        disk.fail()
        os.kill(process, signal.SIGKILL)
    except BaseException:  # noqa: BLE001 - this child must not continue
        traceback.print_exc()
        os.kill(process, signal.SIGCONT)
    finally:
        os._exit(0)


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # the thread has ended
        return "T"


def _interrupt() -> None:
    """Raise KeyboardInterrupt in the main thread, whichever thread made the call."""
    if threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt
    os.kill(os.getpid(), signal.SIGINT)
