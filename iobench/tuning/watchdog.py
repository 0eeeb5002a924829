"""A time limit for each batch, and the stacks of all processes where it is exceeded."""

from __future__ import annotations

import faulthandler
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

from iobench.base.errors import (
    TargetError,
)

T = TypeVar("T")
WRITE_S = 0.5  # for workers to write down where they are


class Watchdog:
    """Raises TargetError, with the stacks of this process and its workers, where a batch takes too long."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._stacks: IO[str] | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Be ready, before any worker is started; only Python's main thread can be interrupted."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with tempfile.TemporaryFile("w+") as self._stacks:
            # workers inherit this: on the signal each writes its stacks into the same file
            faulthandler.register(signal.SIGUSR1, self._stacks, all_threads=True)
            before, timer = signal.signal(signal.SIGALRM, self._bark), signal.getitimer(signal.ITIMER_REAL)
            try:
                yield
            finally:
                signal.signal(signal.SIGALRM, before)
                signal.setitimer(signal.ITIMER_REAL, *timer)
                faulthandler.unregister(signal.SIGUSR1)
                self._stacks = None

    def over(self, items: Iterable[T]) -> Generator[T, None, None]:
        """The same items, each within the time limit."""
        self._case(self._limit_s)
        try:
            for item in items:
                self._case(0)
                yield item
                self._case(self._limit_s)
        finally:
            self._case(0)

    def _case(self, seconds: float) -> None:
        if self._stacks is not None:
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def _bark(self, number: int, frame: FrameType | None) -> None:
        failed = TargetError(
            f"no batch for {self._limit_s:g} s: the loader hangs where the stacks above say; "
            "give a longer --timeout if it is only slow"
        )
        own = "".join(traceback.format_stack(frame))
        failed.traceback = f"main process:\n{own}\n{self._of_workers()}"
        raise failed

    def _of_workers(self) -> str:
        assert self._stacks is not None
        told = []
        for child in psutil.Process().children(recursive=True):
            try:
                if _catches(child.pid, signal.SIGUSR1):  # others would die of the signal
                    child.send_signal(signal.SIGUSR1)
                    told.append(child.pid)
            except (psutil.Error, OSError):
                continue
        if not told:
            return ""
        time.sleep(WRITE_S)
        self._stacks.seek(0)
        return f"workers {', '.join(map(str, told))}:\n{self._stacks.read()}"


def _catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal (proc(5), SigCgt); OSError where that cannot be known.

    A worker that was forked has this process's; one that was started anew has not, nor have
    helpers like multiprocessing's resource tracker or another library's servers.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)
