"""Work in a process of its own, which may hang or die without harm."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from iobench.host.process import START_S, KillableProcess

T = TypeVar("T")
Heartbeat = Callable[[], None]  # says that the work goes on

SILENT = "gave no sign of life"
POLL_S = 0.5


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What became of the work: `value`, or in words why there is none."""

    value: T | None
    failure: str | None = None

    @property
    def hung(self) -> bool:
        """Whether it went on without an end, as far as anybody can tell."""
        return self.failure is not None and self.failure.startswith(SILENT)


def run_in_subprocess(work: Callable[..., T], *arguments: Any, limit_s: float) -> Outcome[T]:
    """What a picklable function returns in a fresh process, given a way to say that it is alive.

    The process is killed with its children once it has said nothing for `limit_s`.
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
    """Do the work that the parent names, and tell it what became of that."""
    work, arguments = connection.recv()
    connection.send(None)
    try:
        outcome = Outcome(work(lambda: connection.send(None), *arguments))
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent tells
        said = str(error).strip().partition("\n")[0]
        outcome = Outcome(None, f"raised {type(error).__name__}: {said}")
    connection.send(outcome)


def _outcome(process: KillableProcess, limit_s: float) -> Outcome[Any]:
    allowed_s, heard = START_S, time.monotonic()
    while time.monotonic() < heard + allowed_s:
        if process.poll(POLL_S):
            said = process.receive()
            if said is not None:
                return said  # type: ignore[no-any-return]
            allowed_s, heard = limit_s, time.monotonic()
    return Outcome(None, f"{SILENT} for {allowed_s:g} s")
