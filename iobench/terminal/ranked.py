"""The command line as one of several ranks: rank 0 runs it and prints, the others do what it says."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psutil

from iobench.errors import BenchError, RankLost
from iobench.host.tree import descendants
from iobench.ranks.place import Place

if TYPE_CHECKING:
    from iobench.ranks.crew import RankCrew


def run_as_rank(place: Place, command: Callable[[RankCrew], Any], complain: Callable[[str], None]) -> Any:
    """What the command returns on rank 0, which it is given the others for; elsewhere an exit code.

    BenchError where this rank is the one to say what is wrong.
    """
    from iobench.ranks.group import join

    if place.rank:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 says when it is over
    try:
        group = join(place)
    except RankLost:
        if place.leads_host:
            raise
        return 1

    def end(verdict: str) -> None:
        """End this process, whose main thread hangs, with all that it started."""
        if group.watch.speaks:
            complain(verdict)
        for process in descendants():
            with contextlib.suppress(psutil.Error):
                psutil.Process(process).kill()
        os._exit(1)

    group.watch.end = end
    signal.signal(signal.SIGTERM, lambda number, frame: group.watch.told_to_end())
    try:
        return _serve(place, command, group)
    except BenchError:
        if place.rank == 0 or group.watch.speaks:
            raise
        return 1
    finally:
        group.close()


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
