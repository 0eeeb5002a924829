"""Errors of the operating system that concern neither the data nor a loader, in one clear line."""

from __future__ import annotations

import errno
import traceback

from iobench.base.errors import SystemRefused

NO_THREAD = "can't start new thread"
STARTERS = ("/subprocess.py", "/multiprocessing/popen_fork.py", "/multiprocessing/util.py")
RAISE_LIMIT = "raise the limit of processes ('ulimit -u', the container's pids limit) or free memory"


def cannot_start(reason: str) -> SystemRefused:
    """Return the error for a process or thread that could not be started."""
    return SystemRefused(
        f"no process can be started: {reason}",
        kind="cannot-start",
        hint=RAISE_LIMIT,
    )


def system_error(error: BaseException) -> SystemRefused | None:
    """Return the one-line error for what the system lacks or refuses; None for any other error."""
    if isinstance(error, SystemRefused):
        return error
    if isinstance(error, RuntimeError) and str(error) == NO_THREAD:
        return cannot_start("the system refused a thread")
    if not isinstance(error, OSError):
        return None
    if error.errno in (errno.EAGAIN, errno.ENOMEM) and _is_of_a_start(error):
        return cannot_start(error.strerror or "the system refused it")
    if "No usable temporary directory" in str(error):
        return SystemRefused(
            "no writable temporary folder", kind="no-temporary-folder", hint="set TMPDIR to one"
        )
    if str(error.filename).startswith(("/proc/", "/sys/")):
        return SystemRefused(
            f"cannot be read: {error.strerror}",
            kind="no-proc",
            path=error.filename,
            hint="mount /proc and /sys",
        )
    return None


def _is_of_a_start(error: BaseException) -> bool:
    """Return True if a module that starts processes raised the error: a read may fail with EAGAIN, too."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.filename.endswith(STARTERS) for frame in frames)
