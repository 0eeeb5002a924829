"""Work in a subprocess, which may hang or die without affecting its parent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from iobench.host.child import Child, ChildEnded, ChildHung, SharedCount

T = TypeVar("T")
Heartbeat = Callable[[], None]  # reports that the work makes progress


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """StudyResult of the work."""

    value: T | None  # return value of the work; None if it failed
    failure: str | None = None  # cause of the failure
    hung: bool = False  # whether the process was killed because its heartbeat stopped


def run_in_subprocess(work: Callable[..., T], *arguments: Any, limit_s: float) -> Outcome[T]:
    """Call a picklable function in a new process.

    Its first argument is a function that sends a heartbeat. The process is killed with its children after
    `limit_s` seconds without one.
    """
    child = Child(f"{__name__}:serve")
    try:
        child.send((work, arguments))
        child.wait(limit_s)
        outcome: Outcome[T] = child.receive()
        return outcome
    except ChildEnded:
        return Outcome(None, child.exit_reason())
    except ChildHung as error:
        return Outcome(None, f"sent no heartbeat for {error.limit_s:g} s", hung=True)
    finally:
        child.end()


def serve(connection: Connection, heartbeats: SharedCount) -> None:
    """Do the work that the parent sends, and send the outcome back."""
    work, arguments = connection.recv()

    def heartbeat() -> None:
        heartbeats.count += 1

    heartbeat()
    try:
        outcome = Outcome(work(heartbeat, *arguments))
    except Exception as error:  # noqa: BLE001 - the parent reports it
        line = str(error).strip().partition("\n")[0]
        outcome = Outcome(None, f"raised {type(error).__name__}: {line}")
    connection.send(outcome)
