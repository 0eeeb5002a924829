"""Work in a process of its own, which may hang or die without harm."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What became of the work: `value`, or in words why there is none."""

    value: T | None
    failure: str | None = None


def apart(work: Callable[..., T], *arguments: Any, limit_s: float) -> Outcome[T]:
    """What a picklable function returns in a fresh process, which is killed with its children at the limit.

    The limit holds for the process's own start, too: importing torch takes some seconds.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=_serve, args=(sender, multiprocessing.get_start_method(), work, arguments)
    )
    process.start()
    sender.close()
    try:
        if not receiver.poll(limit_s):
            return Outcome(None, f"had not ended after {limit_s:g} s")
        outcome: Outcome[T] = receiver.recv()
        return outcome
    except EOFError:
        process.join()
        code = process.exitcode or 0
        return Outcome(None, f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited {code}")
    finally:
        _kill(process.pid)
        process.join()
        receiver.close()


def _serve(sender: Connection, start: str, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.setsid()  # so that its children can be killed with it, and Ctrl-C is its parent's matter
    multiprocessing.set_start_method(start, force=True)  # its own workers are none of this
    try:
        outcome = Outcome(work(*arguments))
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent tells
        said = str(error).strip().partition("\n")[0]
        outcome = Outcome(None, f"raised {type(error).__name__}: {said}")
    sender.send(outcome)


def _kill(pid: int | None) -> None:
    for kill in (os.killpg, os.kill):  # the process, too, in case it has not come to leading a group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid or 0, signal.SIGKILL)
