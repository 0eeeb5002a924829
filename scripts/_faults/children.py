"""Work in a forked child that may die of it, and how it ended."""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from iobench.errors import BenchError
from iobench.formats import FormatError

DONE, REFUSED, CRASHED, INTERRUPTED, HANGS = 0, 1, 70, 130, "hangs"
PATIENCE_S = 120


@dataclass(frozen=True)
class Ended:
    """An exit status as above, or minus the signal that ended the child; and what it said of it."""

    code: int | str
    said: str


def forked(work: Callable[[], None], send: tuple[float, int] | None = None) -> Ended:
    """Run `work` in a child; `send` a signal after so many seconds. Kills one that hangs."""
    with tempfile.TemporaryFile("w+") as said:
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            _child(work, said.fileno())
        code = _awaited(pid, send)
        said.seek(0)
        return Ended(code, said.read().strip())


def _child(work: Callable[[], None], said: int) -> None:
    code = CRASHED
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(said, 2)  # whatever a library has to say, too
        try:
            work()
            code = DONE
        except KeyboardInterrupt:
            code = INTERRUPTED
        except (BenchError, FormatError) as error:
            os.write(said, str(error).encode(errors="backslashreplace"))
            code = REFUSED
        except BaseException:  # noqa: BLE001 - this is what is looked for
            os.write(said, traceback.format_exc().encode(errors="backslashreplace"))
    finally:
        os._exit(code)


def _awaited(pid: int, send: tuple[float, int] | None) -> int | str:
    process = os.pidfd_open(pid)
    try:
        if send is not None and not select.select([process], [], [], send[0])[0]:
            signal.pidfd_send_signal(process, send[1])
        hangs = not select.select([process], [], [], PATIENCE_S)[0]
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
