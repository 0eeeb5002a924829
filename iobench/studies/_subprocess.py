"""Work in a subprocess, which may hang or die without affecting its parent."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from iobench.host.process import START_S, KillableProcess

T = TypeVar("T")
Heartbeat = Callable[[], None]  # reports that the work makes progress

POLL_S = 0.5


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """StudyResult of the work.

    Attributes
    ----------
    value : object or None
        Return value of the work; None if it failed.
    failure : str or None
        Cause of the failure.
    hung : bool
        Whether the process was killed because its heartbeat stopped.
    """

    value: T | None
    failure: str | None = None
    hung: bool = False


def run_in_subprocess(work: Callable[..., T], *arguments: Any, limit_s: float) -> Outcome[T]:
    """Call a picklable function in a new process.

    Its first argument is a function that sends a heartbeat. The process is killed with its children after
    `limit_s` seconds without one.
    """
    process = KillableProcess(serve)
    try:
        process.send((work, arguments))
        return _outcome(process, limit_s)
    except EOFError:
        return Outcome(None, process.exit_reason())
    finally:
        process.end()


def serve(connection: Connection) -> None:
    """Do the work that the parent sends, and send the outcome back."""
    work, arguments = connection.recv()
    connection.send(None)
    try:
        outcome = Outcome(work(lambda: connection.send(None), *arguments))
    except Exception as error:  # noqa: BLE001 - the parent reports it
        line = str(error).strip().partition("\n")[0]
        outcome = Outcome(None, f"raised {type(error).__name__}: {line}")
    connection.send(outcome)


def _outcome(process: KillableProcess, limit_s: float) -> Outcome[Any]:
    allowed_s, heard = START_S, time.monotonic()
    while time.monotonic() < heard + allowed_s:
        if process.poll(POLL_S):
            message = process.receive()
            if message is not None:
                return message  # type: ignore[no-any-return]
            allowed_s, heard = limit_s, time.monotonic()
    return Outcome(None, f"sent no heartbeat for {allowed_s:g} s", hung=True)
