"""Run functions in forked children that may crash, hang or be killed, and report how they ended."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from eval.faults.registry import Outcome
from iobench.base.errors import IobenchError

DONE, REFUSED, CRASHED, INTERRUPTED, HANGS = 0, 1, 70, 130, "hangs"
TIMEOUT_S = 120
FAULTLESS_S = 300  # for work without a fault
MAX_MESSAGE = 2000  # characters of an error
NO_RIGHTS = 65534  # user and group


@dataclass(frozen=True)
class ChildResult:
    """The end of a child: a code as above, or minus its signal, and its stderr.

    An IobenchError is `error[KIND]: MESSAGE` in the output.
    """

    code: int | str
    output: str

    @property
    def kind(self) -> str | None:
        """The kind of the IobenchError that ended the child."""
        match = re.match(r"error\[([a-z0-9-]+)\]: ", self.output)
        return match[1] if match and self.code == REFUSED else None


def run_forked(
    work: Callable[[], None], signal_after: tuple[float, int] | None = None, timeout_s: float = TIMEOUT_S
) -> ChildResult:
    """Run `work` in a child; `signal_after` is (seconds, signal). A child that hangs is killed."""
    return run_together([work], signal_after, timeout_s)[0]


def run_together(
    works: Sequence[Callable[[], None]],
    signal_after: tuple[float, int] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> list[ChildResult]:
    """Run each function in its own child, all at the same time, as `run_forked` does."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile("w+", errors="backslashreplace")) for _ in works]
        children = [_start(work, file.fileno()) for work, file in zip(works, files, strict=True)]
        results = []
        for pid, file in zip(children, files, strict=True):
            stop = signal_after and (signal_after[0], partial(os.kill, pid, signal_after[1]))
            code = wait_for(pid, stop, timeout_s)
            file.seek(0)
            results.append(ChildResult(code, file.read().strip()))
        return results


def is_one_line(text: str) -> bool:
    """Return whether an error is a single line of readable length."""
    return 0 < len(text) < MAX_MESSAGE and "\n" not in text


def failure_of(result: ChildResult) -> str | None:
    """Describe a wrong end; None after the work was done or an error of one line."""
    if result.code == DONE or (result.code == REFUSED and is_one_line(result.output)):
        return None
    return f"exit {result.code}: {result.output[-MAX_MESSAGE:]}"


def tried(fault: str, work: Callable[..., None], *arguments: object, timeout_s: float = TIMEOUT_S) -> Outcome:
    """Return a fault and what is wrong about the end of a child that met it."""
    return fault, failure_of(run_forked(partial(work, *arguments), timeout_s=timeout_s))


def _start(work: Callable[[], None], stderr: int) -> int:
    sys.stdout.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the child handles it
    pid = os.fork()
    if not pid:
        _child(work, stderr)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def _child(work: Callable[[], None], stderr: int) -> None:
    code = CRASHED
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(stderr, 2)  # also messages of libraries
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            work()
            code = DONE
        except KeyboardInterrupt:
            code = INTERRUPTED
        except IobenchError as error:
            os.write(stderr, f"error[{error.kind}]: {error}".encode(errors="backslashreplace"))
            code = REFUSED
        except BaseException:  # noqa: BLE001 - the failures that the kinds search for
            os.write(stderr, traceback.format_exc().encode(errors="backslashreplace"))
    finally:
        os._exit(code)


def wait_for(pid: int, stop: tuple[float, Callable[[], object]] | None, timeout_s: float) -> int | str:
    """Return the exit code of a child; `stop` is called after so many seconds. One that hangs is killed."""
    process = os.pidfd_open(pid)
    try:
        if stop is not None and not select.select([process], [], [], stop[0])[0]:
            stop[1]()
        hangs = not select.select([process], [], [], timeout_s)[0]
        if hangs:
            os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return HANGS if hangs else code
    finally:
        os.close(process)


def time_child(work: Callable[[], None]) -> float:
    """Return the seconds that a child needs; raise RuntimeError if it fails."""
    started = time.monotonic()
    run_or_raise(work)
    return time.monotonic() - started


def run_or_raise(work: Callable[[], None]) -> None:
    """Run `work`, which meets no fault, in a child; raise RuntimeError if it fails."""
    result = run_forked(work, timeout_s=FAULTLESS_S)
    if result.code != DONE:
        raise RuntimeError(f"failed without a fault, exit {result.code}: {result.output}")


def drop_rights() -> None:
    """Make this process, a child of root, that of a user without rights; nothing for other users.

    Raises RuntimeError where that user cannot read the program itself.
    """
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NO_RIGHTS, NO_RIGHTS, NO_RIGHTS)
        os.setresuid(NO_RIGHTS, NO_RIGHTS, NO_RIGHTS)
        if not os.access(__file__, os.R_OK):
            raise RuntimeError(f"user {NO_RIGHTS} cannot read {__file__}: chmod o+rx its folders")


def limit_memory(more_bytes: int) -> None:
    """Limit this process, a child, to so many more bytes of address space."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + more_bytes, now + more_bytes))
