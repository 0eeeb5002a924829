"""Ctrl-C, taken where it does no harm."""

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
    """Processes started in here never see Ctrl-C: their parent, who sees it afterwards, ends them."""
    resource_tracker.ensure_running()  # here, because starting it unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def deferred(once: bool = True) -> Iterator[Check]:
    """Note the first Ctrl-C, for the function that this yields to raise; a second one acts at once.

    Unless `once` is false: then the following are noted as well, which come where torchrun passes on
    what a terminal has sent to its ranks already.

    Raised just anywhere it can get lost in a callback, or leave a worker in the middle of a message
    to complain of that.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone is told of Ctrl-C
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
