"""Calls of one thread and their times, by cProfile."""

from __future__ import annotations

import cProfile
import os
import pstats
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar


class CallProfile:
    """Calls of the thread of a `with` block; none where another profiler is active, which continues.

    A forked process inherits the profile of its parent, which ends there.
    """

    _running: ClassVar[tuple[int, cProfile.Profile] | None] = None  # with its process

    def __init__(self) -> None:
        self._profile = cProfile.Profile()
        self.obstacle: str | None = None  # name of another profiler that prevents this one
        self.cpu_s = 0.0  # of the thread in the block

    def __enter__(self) -> CallProfile:
        if CallProfile._running is not None and CallProfile._running[0] != os.getpid():
            CallProfile._running[1].disable()
        self.obstacle = _other_profiler()
        self._began_s = time.thread_time()
        if self.obstacle is None:
            CallProfile._running = (os.getpid(), self._profile)
            self._profile.enable()
            _filter_threads()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.obstacle is None:
            self._profile.disable()
            CallProfile._running = None
        self.cpu_s = time.thread_time() - self._began_s

    @property
    def calls(self) -> dict[Any, Any]:
        """Calls as `pstats` has them: by file, line and function."""
        if self.obstacle is not None:  # whose profile `create_stats` would end, up to Python 3.11
            return {}
        self._profile.create_stats()
        calls: dict[Any, Any] = self._profile.stats
        return calls

    def dump(self, path: str) -> None:
        """Write the calls to a file, unless another profiler prevented them."""
        if self.obstacle is None:
            self._profile.dump_stats(path)


def calls_in(paths: list[str]) -> dict[Any, Any]:
    """Return the calls in files, together."""
    return pstats.Stats(*paths).stats if paths else {}  # type: ignore[attr-defined]


def _other_profiler() -> str | None:
    """Return the name of the profiler in cProfile's place: up to Python 3.11 that of `sys.setprofile`."""
    if sys.version_info >= (3, 12):
        return sys.monitoring.get_tool(sys.monitoring.PROFILER_ID)
    other = sys.getprofile()
    return None if other is None else getattr(other, "__module__", None) or "another profiler"


def _filter_threads() -> None:
    """Keep the calls of other threads from cProfile, which from Python 3.12 on takes all for one thread's."""
    if sys.version_info < (3, 12):
        return
    monitoring, own = sys.monitoring, threading.get_ident()

    def filtered(note: Callable[..., Any]) -> Callable[..., None]:
        def note_own(*arguments: Any) -> None:
            if threading.get_ident() == own:
                note(*arguments)

        return note_own

    for event in vars(monitoring.events).values():
        if event and (note := monitoring.register_callback(monitoring.PROFILER_ID, event, None)):
            monitoring.register_callback(monitoring.PROFILER_ID, event, filtered(note))
