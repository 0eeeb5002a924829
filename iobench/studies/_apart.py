"""Work in a process of its own, which may hang or die without harm."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from iobench.host import interrupts

T = TypeVar("T")
Heartbeat = Callable[[], None]  # says that the work goes on

SILENT = "gave no sign of life"
START_S = 120.0  # for a process to begin: importing torch takes some seconds
SNAPSHOT_S = 0.5
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What became of the work: `value`, or in words why there is none."""

    value: T | None
    failure: str | None = None

    @property
    def hung(self) -> bool:
        """Whether it went on without an end, as far as anybody can tell."""
        return self.failure is not None and self.failure.startswith(SILENT)


def apart(work: Callable[..., T], *arguments: Any, limit_s: float) -> Outcome[T]:
    """What a picklable function returns in a fresh process, given a way to say that it is alive.

    The process is killed with its children once it has said nothing for `limit_s`.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(sender, work, arguments))
    try:
        with interrupts.blocked():  # the process is never told of Ctrl-C: this one ends it
            process.start()
        sender.close()
        return _outcome(receiver, process, limit_s)
    except (EOFError, OSError):  # it died, perhaps in the middle of a message
        process.join()
        code = process.exitcode or 0
        return Outcome(None, f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited {code}")
    finally:
        _end(process)
        receiver.close()


def _outcome(receiver: Connection, process: Any, limit_s: float) -> Outcome[Any]:
    allowed_s, heard = START_S, time.monotonic()
    while time.monotonic() < heard + allowed_s:
        if receiver.poll(SNAPSHOT_S):
            said = receiver.recv()
            if said is not None:
                return said  # type: ignore[no-any-return]
            allowed_s, heard = limit_s, time.monotonic()
        elif not process.is_alive() and not receiver.poll(0):  # its children may hold the other end
            raise EOFError
    return Outcome(None, f"{SILENT} for {allowed_s:g} s")


def _serve(sender: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.setsid()  # so that its children can be killed with it
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # nor does it outlive its parent
    sender.send(None)
    try:
        outcome = Outcome(work(lambda: sender.send(None), *arguments))
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent tells
        said = str(error).strip().partition("\n")[0]
        outcome = Outcome(None, f"raised {type(error).__name__}: {said}")
    sender.send(outcome)


def _end(process: Any) -> None:
    if process.pid is None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # its children, too
    process.kill()  # in case it has not come to leading a group
    process.join()
