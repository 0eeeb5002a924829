"""Work in a forked child that may die of it, and how it ended."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from iobench.base.errors import (
    IobenchError,
)

DONE, REFUSED, CRASHED, INTERRUPTED, HANGS = 0, 1, 70, 130, "hangs"
PATIENCE_S = 120
LINE = 2000  # characters of an error


@dataclass(frozen=True)
class Ended:
    """An exit status as above, or minus the signal that ended the child; and what it said of it."""

    code: int | str
    said: str


def forked(
    work: Callable[[], None], send: tuple[float, int] | None = None, patience_s: float = PATIENCE_S
) -> Ended:
    """Run `work` in a child; `send` a signal after so many seconds. Kills one that hangs."""
    with tempfile.TemporaryFile("w+", errors="backslashreplace") as said:
        pid = _started(work, said.fileno())
        code = _awaited(pid, send, patience_s)
        said.seek(0)
        return Ended(code, said.read().strip())


def together(works: Sequence[Callable[[], None]]) -> list[Ended]:
    """Run each in a child of its own, all at once."""
    with contextlib.ExitStack() as stack:
        said = [stack.enter_context(tempfile.TemporaryFile("w+", errors="backslashreplace")) for _ in works]
        children = [_started(work, file.fileno()) for work, file in zip(works, said, strict=True)]
        ended = []
        for pid, file in zip(children, said, strict=True):
            code = _awaited(pid, None, PATIENCE_S)
            file.seek(0)
            ended.append(Ended(code, file.read().strip()))
        return ended


def is_a_line(text: str) -> bool:
    """Whether an error says what it has to say in one line that somebody can read."""
    return 0 < len(text) < LINE and "\n" not in text


def complaint(ended: Ended, allowed: Sequence[int | str] = (DONE,)) -> str | None:
    """What is bad about an end: None where it was as allowed, or refused in one line."""
    if ended.code in allowed or (ended.code == REFUSED and is_a_line(ended.said)):
        return None
    return f"it ended with {ended.code}: {ended.said[-LINE:]}"


def _started(work: Callable[[], None], said: int) -> int:
    sys.stdout.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the child can tell of it
    pid = os.fork()
    if not pid:
        _child(work, said)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def _child(work: Callable[[], None], said: int) -> None:
    code = CRASHED
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(said, 2)  # whatever a library has to say, too
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            work()
            code = DONE
        except KeyboardInterrupt:
            code = INTERRUPTED
        except IobenchError as error:
            os.write(said, str(error).encode(errors="backslashreplace"))
            code = REFUSED
        except BaseException:  # noqa: BLE001 - this is what is looked for
            os.write(said, traceback.format_exc().encode(errors="backslashreplace"))
    finally:
        os._exit(code)


def _awaited(pid: int, send: tuple[float, int] | None, patience_s: float) -> int | str:
    process = os.pidfd_open(pid)
    try:
        if send is not None and not select.select([process], [], [], send[0])[0]:
            signal.pidfd_send_signal(process, send[1])
        hangs = not select.select([process], [], [], patience_s)[0]
        if hangs:
            os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return HANGS if hangs else code
    finally:
        os.close(process)


def seconds(work: Callable[[], None]) -> float:
    """How long a child takes for it; RuntimeError where it does not get through."""
    started = time.monotonic()
    ended = forked(work)
    if ended.code != DONE:
        raise RuntimeError(f"undisturbed it ended with {ended.code}: {ended.said}")
    return time.monotonic() - started


def limit_memory(more_bytes: int) -> None:
    """Let this process have no more than so much address space beside what it has; for children."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + more_bytes, now + more_bytes))
