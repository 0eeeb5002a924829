"""Time limits of each batch and of all of them, with the stacks of all processes if no batch came."""

from __future__ import annotations

import faulthandler
import logging  # noqa: F401 - its hooks of fork have to be registered before those below
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from math import inf, isfinite
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import IO, Any, TypeVar

import psutil

from iobench.base.errors import TargetError
from iobench.bench.budget import Budget
from iobench.host.process_counters import status_of
from iobench.results.run_warning import LONGER

T = TypeVar("T")
IOBENCH = str(Path(__file__).parents[2])
FORKED = re.compile(r"(?m)^  File .* in _worker_loop\n(  File .*\n)*")  # what came before a worker's own work
WRITE_S, LOOK_S = 0.5, 0.02  # at most, for a worker to write its stacks; between two looks at the file
BUILDING = 5  # times the limit of a batch, for a function to build its loader
LEAST, ANSWER = 0.1, 0.05  # of all time: for the loader at least, and for ending workers and the answer
# a wait that has taken so long, most of all time, and so many times as long as any before it hangs
HANGING_S, HANGING, LONGEST = 3.0, 0.5, 20
REPEAT_S = 1.0  # until the next alarm, where a destructor or callback swallowed the error of this one


_STATE = SimpleNamespace(forking=False)  # True from before other hooks of a fork until after them
_FORKED = partial(setattr, _STATE, "forking", False)  # without Python code, which an alarm could interrupt
os.register_at_fork(
    before=partial(setattr, _STATE, "forking", True), after_in_parent=_FORKED, after_in_child=_FORKED
)


def loader_budget(whole: Budget) -> Budget:
    """Return the time of a loader, after which all can end in time.

    The loader gets a tenth of the time however long the import of its file took.
    """
    left_s = (1 - ANSWER) * whole.seconds - whole.elapsed()
    return Budget(max(left_s, LEAST * whole.seconds), clock=whole.now)


def built(build: Callable[[], T], limit_s: float) -> T:
    """Return the loader that a user's function builds; TargetError as of `Watchdog` if it hangs.

    `limit_s` is that of a batch: a function may list millions of files, and has longer.
    """
    watchdog = Watchdog(BUILDING * limit_s)
    with watchdog.active(), watchdog.within(inf):
        return build()


class DeadlineReached(TargetError):
    """The time for everything ended while the user's loader was at work."""


class Hung(TargetError):
    """The user's loader delivers no batch."""


class Watchdog:
    """Raises TargetError, with the stacks of this process and its workers, if no batch comes for `limit_s`.

    After the budget it raises DeadlineReached, and all workers end. Nothing may use the loader afterwards.
    """

    def __init__(self, limit_s: float, budget: Budget | None = None) -> None:
        self._limit_s, self.budget = limit_s, budget or Budget()
        self._stacks: IO[str] | None = None
        self._now = self.budget  # of what runs now
        self.delivered = False  # a batch has come
        self._waiting_since: float | None = None  # for an item that is guarded
        self._longest_s = 0.0  # wait for any
        self._ending = False  # the end has come
        self._ended = False  # the workers were ended
        self._guarding = False  # the user's loader is at work, and may be interrupted
        self._on_child: Callable[[int, FrameType | None], Any] | None = None  # torch's handler of SIGCHLD

    def part(self, fraction: float, most_s: float = inf) -> Budget:
        """Return a budget, from now on, of a fraction of all the time."""
        return self.budget.sub(min(most_s, fraction * self.budget.seconds))

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
            unraisable = sys.unraisablehook
            sys.unraisablehook = lambda lost: (
                None if isinstance(lost.exc_value, DeadlineReached) else unraisable(lost)
            )
            timer = signal.getitimer(signal.ITIMER_REAL)
            try:
                yield
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)  # else its last alarm could meet the former handler
                signal.signal(signal.SIGALRM, before)
                sys.unraisablehook = unraisable
                if self._on_child is not None:
                    signal.signal(signal.SIGCHLD, self._on_child)
                signal.setitimer(signal.ITIMER_REAL, *timer)
                faulthandler.unregister(signal.SIGUSR1)
                self._stacks = None

    def guard(self, items: Iterable[T]) -> Generator[T, None, None]:
        """Yield the same items, each within the time limit."""
        if self._now.over:  # an alarm could come while a worker is forked
            raise self._out_of_time()
        self._waiting_since = time.monotonic()
        self._arm()
        try:
            for item in items:
                self._disarm()
                self.delivered = True
                self._longest_s = max(self._longest_s, time.monotonic() - self._waiting_since)
                yield item
                self._waiting_since = time.monotonic()
                self._arm()
        except DeadlineReached:
            if self._ending:
                self._end_workers()
            raise
        except Hung:
            raise
        except Exception:
            # the loader misses its workers, or code that cleans up failed over the interruption
            if self._ended or self._now.over:
                raise self._out_of_time() from None
            raise
        finally:
            self._waiting_since = None
            self._disarm()

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Raise DeadlineReached if the block takes longer; the loader may be used afterwards."""
        self._now = self.budget.sub(seconds)
        self._arm()
        try:
            yield
        finally:
            self._disarm()
            self._now = self.budget

    def _arm(self) -> None:
        self._guarding = True
        self._set_timer(min(self._limit_s, max(self._now.left(), LOOK_S)))

    def _disarm(self) -> None:
        self._guarding = False
        left_s = self.budget.left()
        self._set_timer(max(left_s, LOOK_S) if isfinite(left_s) else 0)

    def _set_timer(self, seconds: float) -> None:
        if self._stacks is not None:
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        if _STATE.forking:  # an error would be lost in a hook, and with it the release of logging's lock
            self._set_timer(LOOK_S)
            return
        if not self._guarding:  # a loader that is being closed may wait for its workers
            self._end_workers()
            return
        hanging_s = max(HANGING_S, HANGING * self.budget.seconds, LONGEST * self._longest_s)
        late = self._now.over and not (self.delivered and self._waited_s > hanging_s)
        error: TargetError = self._out_of_time() if late else self._hung()
        if not late or not self.delivered:
            frames = traceback.extract_stack(frame)
            own = max((at for at, one in enumerate(frames, 1) if one.filename.startswith(IOBENCH)), default=0)
            main = "".join(traceback.format_list(frames[own:]))
            error.traceback = f"main process:\n{main}\n{self._worker_stacks()}"
        if self._ending:  # the loader is being closed, and waits for its workers
            self._end_workers()
        self._ending = self.budget.over
        self._set_timer(REPEAT_S)
        try:
            raise error
        finally:
            del error  # else this frame and its traceback would keep the loader and its workers

    def _end_workers(self) -> None:
        """End the workers of all DataLoaders: a DataLoader waits for each to finish its batch.

        Until the watchdog is inactive nothing handles their end: torch's handler raises. A handler that does
        nothing takes its place, because Python complains of a signal that came just before SIG_DFL was set.
        """
        self._ended = True
        handler = signal.getsignal(signal.SIGCHLD)
        if callable(handler) and handler is not _do_nothing:
            self._on_child = handler
            signal.signal(signal.SIGCHLD, _do_nothing)
        for child in multiprocessing.active_children():
            if child.daemon:  # a Manager of the user's is none
                child.terminate()

    @property
    def _waited_s(self) -> float:
        return 0.0 if self._waiting_since is None else time.monotonic() - self._waiting_since

    def _hung(self) -> Hung:
        problem = f"no batch for {self._waited_s:.3g} s: the loader hangs where the stacks above show"
        longer = "--max-time" if self._now.over else "--timeout"
        return Hung(problem, kind="timeout", hint=f"if it is only slow, give a longer {longer}")

    def _out_of_time(self) -> DeadlineReached:
        why = "the loader is slow, or hangs where the stacks above show"
        problem = f"the time ended before the first batch: {why}"
        return DeadlineReached(problem, kind="out-of-time", hint=LONGER)

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
        stacks = FORKED.sub("", self._stacks.read())
        return f"workers {', '.join(map(str, signalled))}:\n{stacks}"

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


def _do_nothing(number: int, frame: FrameType | None) -> None:
    return


def _handles(pid: int, number: signal.Signals) -> bool:
    """Return True if a process has a handler for a signal.

    A forked worker has this process's handlers. A spawned one has none, nor have helper processes such as
    multiprocessing's resource tracker or other libraries' servers. OSError if the kernel does not tell.
    """
    return bool(int(status_of(pid, "SigCgt"), 16) >> (number - 1) & 1)
