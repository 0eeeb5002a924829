"""A process that is struck at one of its system calls that change a disk."""

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

from _faults.power import Disk

LUCK = {
    "power lost": 0.0,
    "power lost, names kept": 1.0,
    **{f"power lost, by lot {number}": 0.5 for number in range(1, 5)},
}
MODES = ("killed", "refused", "interrupted", *LUCK)
NAMES = (
    "rename replace unlink remove rmdir mkdir link symlink truncate ftruncate fsync fdatasync write".split()
)


class Calls:
    """Counts the calls of this process that change a disk, and strikes at number `at`.

    killed: it is gone before the call. refused: the call fails. interrupted: Ctrl-C comes right
    after it. power lost: as killed, and `disk` forgets what was not synced.
    """

    def __init__(self, mode: str = "killed", at: int | None = None, disk: Disk | None = None) -> None:
        self.mode, self.at, self.disk, self.count = mode, at, disk, 0

    def watch(self) -> None:
        """Wrap what the process calls, for the rest of its life."""
        for name in NAMES:
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
            struck = self.count == self.at
            if struck:
                self._before(arguments)
            try:
                result = call(*arguments, **named)
            finally:
                if struck:
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
            _cut_power(self.disk)
        if self.mode == "killed":
            os.kill(os.getpid(), signal.SIGKILL)


def _cut_power(disk: Disk) -> None:
    """Kill this process, and leave of the disk what a power failure leaves.

    A child does it once all threads are stopped: any of them may be writing.
    """
    process = os.getpid()
    if child := os.fork():
        os.waitpid(child, 0)
        raise RuntimeError("the power could not be cut")
    try:
        os.kill(process, signal.SIGSTOP)
        while any(_state(task) not in "Tt" for task in Path(f"/proc/{process}/task").iterdir()):
            time.sleep(0.0001)
        disk.fail()
        os.kill(process, signal.SIGKILL)
    except BaseException:  # noqa: BLE001 - nothing may go on in a child of this
        traceback.print_exc()
        os.kill(process, signal.SIGCONT)
    finally:
        os._exit(0)


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # it has ended
        return "T"


def _interrupt() -> None:
    """As Ctrl-C does: the main thread has it, whichever made the call."""
    if threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt
    os.kill(os.getpid(), signal.SIGINT)
