"""The command line as one of several ranks: rank 0 runs it and prints, the others execute its requests."""

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

from iobench.base.errors import IobenchError, RankLost
from iobench.base.standard_streams import stdout_to_stderr
from iobench.host.child import kill_when_stopped
from iobench.host.process_counters import descendants
from iobench.host.rank_info import RankInfo

if TYPE_CHECKING:
    from iobench.ranks.distributed_backend import DistributedBackend


def run_as_rank(
    info: RankInfo, command: Callable[[DistributedBackend], Any], complain: Callable[[str, str], None]
) -> Any:
    """Run a command over all ranks: return its result on rank 0, an exit code elsewhere.

    Raises IobenchError only on the rank that reports the failure.
    """
    from iobench.ranks.group import JOIN_S, join
    from iobench.ranks.heartbeat import SUSPECT_S, silent_s

    if info.rank:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 decides when the run ends
    with _met_within(JOIN_S + SUSPECT_S, info, complain):
        group = join(info)

    def end(verdict: RankLost) -> None:
        """Kill this process, whose main thread hangs, and its descendants."""
        if (info.rank == 0 or group.monitor.reports_failure) and not group.monitor.acknowledged:
            complain(str(verdict), verdict.kind)
        for process in descendants():
            with contextlib.suppress(psutil.Error):
                psutil.Process(process).kill()
        os._exit(1)

    group.monitor.end = end
    guard = kill_when_stopped(silent_s() + SUSPECT_S)  # after the others have noticed its silence
    signal.signal(signal.SIGTERM, lambda number, frame: group.monitor.terminate())
    try:
        return _serve(info, command, group)
    except IobenchError:
        if info.rank == 0 or group.monitor.reports_failure:
            raise
        return 1
    finally:
        if group.alive:
            group.close()
        else:
            group.monitor.wait_for_readers()
            atexit.register(_leave)
        guard.kill()
        guard.wait()


@contextlib.contextmanager
def _met_within(seconds: float, info: RankInfo, complain: Callable[[str, str], None]) -> Iterator[None]:
    """Exit if this rank has not connected by then: connecting cannot be interrupted."""

    def end() -> None:
        if info.leads_host:
            error = RankLost(
                f"{info} could not connect to the other ranks within {seconds:.0f} s",
                kind="ranks-unreachable",
                hint="check that all are running and that the hosts resolve each other's names",
            )
            complain(str(error), error.kind)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _leave() -> None:
    """Exit without closing the process group: gloo would wait for ranks that are gone."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(1)


def _serve(info: RankInfo, command: Callable[[DistributedBackend], Any], group: Any) -> Any:
    from iobench.ranks.distributed_backend import DistributedBackend
    from iobench.ranks.rank import check_environments, worker_loop

    notes = check_environments(group)
    if info.rank:
        with stdout_to_stderr():
            worker_loop(group)
        return 0
    backend = DistributedBackend(group, notes)
    try:
        return command(backend)
    finally:
        backend.stop()
