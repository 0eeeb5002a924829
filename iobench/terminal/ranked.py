"""The command line as one of several ranks: rank 0 runs it and prints, the others do what it says."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import psutil

from iobench.base.errors import (
    IobenchError,
)
from iobench.host.stopped import end_where_stopped
from iobench.host.tree import descendants
from iobench.ranks.place import Place

if TYPE_CHECKING:
    from iobench.ranks.crew import RankCrew


def run_as_rank(place: Place, command: Callable[[RankCrew], Any], complain: Callable[[str], None]) -> Any:
    """What the command returns on rank 0, which it is given the others for; elsewhere an exit code.

    IobenchError where this rank is the one to say what is wrong.
    """
    from iobench.ranks.group import JOIN_S, join
    from iobench.ranks.watch import SUSPECT_S, silent_s

    if place.rank:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 says when it is over
    with _met_within(JOIN_S + SUSPECT_S, place, complain):
        group = join(place)

    def end(verdict: str) -> None:
        """End this process, whose main thread hangs, with all that it started."""
        if (place.rank == 0 or group.watch.speaks) and not group.watch.heard:
            complain(verdict)
        for process in descendants():
            with contextlib.suppress(psutil.Error):
                psutil.Process(process).kill()
        os._exit(1)

    group.watch.end = end
    guard = end_where_stopped(silent_s() + SUSPECT_S)  # once the others have seen that it is silent
    signal.signal(signal.SIGTERM, lambda number, frame: group.watch.told_to_end())
    try:
        return _serve(place, command, group)
    except IobenchError:
        if place.rank == 0 or group.watch.speaks:
            raise
        return 1
    finally:
        if group.alive:
            group.close()
        else:
            group.watch.let_others_read()
            atexit.register(_leave)
        guard.kill()
        guard.wait()


@contextlib.contextmanager
def _met_within(seconds: float, place: Place, complain: Callable[[str], None]) -> Iterator[None]:
    """End this process where it has not met the others by then: connecting cannot be interrupted."""

    def end() -> None:
        if place.leads_host:
            complain(
                f"{place} has not reached the other ranks within {seconds:.0f} s; see that all of them were "
                "started, and that all hosts resolve each other's names"
            )
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _leave() -> None:
    """End without taking leave of ranks that are gone: gloo would wait for them."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(1)


def _serve(place: Place, command: Callable[[RankCrew], Any], group: Any) -> Any:
    from iobench.ranks.alike import check_alike
    from iobench.ranks.crew import RankCrew
    from iobench.ranks.rank import obey

    remarks = check_alike(group)
    if place.rank:
        obey(group)
        return 0
    crew = RankCrew(group, remarks)
    try:
        return command(crew)
    finally:
        crew.stop()
