"""Handle Ctrl-C only at points where it does no harm."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType

Check = Callable[[], None]


@contextmanager
def blocked() -> Iterator[None]:
    """Block Ctrl-C for processes started in the block; the parent receives it afterwards and ends them."""
    resource_tracker.ensure_running()  # here, because starting it unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def deferred(once: bool = True) -> Iterator[Check]:
    """Defer Ctrl-C: note it, and raise KeyboardInterrupt in the function that the block receives.

    A KeyboardInterrupt raised at an arbitrary point can be lost in a callback, or leave a worker in the
    middle of a message. `once`: a second Ctrl-C acts at once. Otherwise all are deferred: torchrun passes on
    to its ranks a Ctrl-C that the terminal has sent to them already.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives Ctrl-C
        yield lambda: None
        return
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        if once:
            signal.signal(signal.SIGINT, before)

    def check() -> None:
        if came:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
