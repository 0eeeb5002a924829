"""Time limit for each batch, with the stacks of all processes if it is exceeded."""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, TypeVar

import psutil

from iobench.base.errors import TargetError

T = TypeVar("T")
WRITE_S, LOOK_S = 0.5, 0.02  # at most, for a worker to write its stacks; between two looks at the file
REPEAT_S = 1.0  # until the next alarm, where a destructor or callback swallowed the error of this one


class Watchdog:
    """Raises TargetError, with the stacks of this process and its workers, if a batch takes too long.

    Parameters
    ----------
    limit_s : float
        Seconds without a batch after which the loader counts as hung.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._stacks: IO[str] | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Install the signal handlers, before any worker starts.

        Without effect outside the main thread, the only one that Python can interrupt.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with tempfile.TemporaryFile("w+") as self._stacks:
            # workers inherit this handler: on the signal each writes its stacks into the same file
            faulthandler.register(signal.SIGUSR1, self._stacks, all_threads=True)
            before = signal.signal(signal.SIGALRM, self._on_alarm)
            timer = signal.getitimer(signal.ITIMER_REAL)
            try:
                yield
            finally:
                signal.signal(signal.SIGALRM, before)
                signal.setitimer(signal.ITIMER_REAL, *timer)
                faulthandler.unregister(signal.SIGUSR1)
                self._stacks = None

    def guard(self, items: Iterable[T]) -> Generator[T, None, None]:
        """Yield the same items, each within the time limit."""
        self._set_timer(self._limit_s)
        try:
            for item in items:
                self._set_timer(0)
                yield item
                self._set_timer(self._limit_s)
        finally:
            self._set_timer(0)

    def _set_timer(self, seconds: float) -> None:
        if self._stacks is not None:
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        error = TargetError(
            f"no batch for {self._limit_s:g} s: the loader hangs where the stacks above show",
            kind="timeout",
            hint="if it is only slow, give a longer --timeout",
        )
        main = "".join(traceback.format_stack(frame))
        error.traceback = f"main process:\n{main}\n{self._worker_stacks()}"
        self._set_timer(REPEAT_S)
        raise error

    def _worker_stacks(self) -> str:
        assert self._stacks is not None
        signalled = []
        for child in psutil.Process().children(recursive=True):
            try:
                if _handles(child.pid, signal.SIGUSR1):  # the signal would end any other process
                    self._write_stacks(child)
                    signalled.append(child.pid)
            except (psutil.Error, OSError):
                continue
        if not signalled:
            return ""
        self._stacks.seek(0)
        return f"workers {', '.join(map(str, signalled))}:\n{self._stacks.read()}"

    def _write_stacks(self, child: psutil.Process) -> None:
        """Let a worker write its stacks, and wait until it has: two at once would mix their lines."""
        assert self._stacks is not None
        before = size = os.fstat(self._stacks.fileno()).st_size
        child.send_signal(signal.SIGUSR1)
        for _ in range(int(WRITE_S / LOOK_S)):
            time.sleep(LOOK_S)
            last, size = size, os.fstat(self._stacks.fileno()).st_size
            if before < size == last:
                return


def _handles(pid: int, number: signal.Signals) -> bool:
    """Return True if a process has a handler for a signal (proc(5), SigCgt).

    A forked worker has this process's handlers. A spawned one has none, nor have helper processes such as
    multiprocessing's resource tracker or other libraries' servers. OSError if the kernel does not tell.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)
