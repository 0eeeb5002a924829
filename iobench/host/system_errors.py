"""Errors of the operating system that concern neither the data nor a loader, in one clear line."""

from __future__ import annotations

import errno
import os
import resource
import traceback

from iobench.base.errors import SystemRefused
from iobench.base.units import bytes_text

NO_THREAD = "can't start new thread"
STARTERS = ("/subprocess.py", "/multiprocessing/popen_fork.py", "/multiprocessing/util.py")
SEMAPHORES = ("/multiprocessing/synchronize.py",)
NO_FILE_CAME = "received 0 items of ancdata"  # the kernel drops what exceeds the receiver's limit
BUS_ERROR = "workers are out of shared memory"  # torch's guess where a worker ended so
TORCH_FILE = "</torch_"  # torch's messages name its files in shared memory so
RAISE_LIMIT = "raise the limit of processes ('ulimit -u', the container's pids limit) or free memory"


def cannot_start(reason: str) -> SystemRefused:
    """Return the error for a process or thread that could not be started."""
    return SystemRefused(f"no process can be started: {reason}", kind="cannot-start", hint=RAISE_LIMIT)


def _no_shared_memory() -> SystemRefused:
    """Return the error for full shared memory, which is 64 MiB in a Docker container by default."""
    from iobench.host.memory import SHARED_MEMORY, shared_memory

    return SystemRefused(
        f"shared memory is full: it has {bytes_text(shared_memory()[1])}",
        kind="no-shared-memory",
        path=SHARED_MEMORY,
        hint="start the container with more ('--shm-size 8g'), or use fewer workers or smaller batches",
    )


def _too_many_files() -> SystemRefused:
    """Return the error for a process that has as many files open as it may have."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return SystemRefused(
        f"too many open files: the limit is {limit}",
        kind="too-many-files",
        hint=f"raise it with 'ulimit -n', here to {most} at most, use fewer workers, or share tensors by "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
    )


def system_error(error: BaseException) -> SystemRefused | None:
    """Return the one-line error for what the system lacks or refuses; None for any other error."""
    if isinstance(error, SystemRefused):
        return error
    message = str(error)
    if isinstance(error, RuntimeError):
        if message == NO_THREAD:
            return cannot_start("the system refused a thread")
        if os.strerror(errno.EMFILE) in message or NO_FILE_CAME in message:
            return _too_many_files()
        full = TORCH_FILE in message and os.strerror(errno.ENOSPC) in message
        return _no_shared_memory() if full or BUS_ERROR in message else None
    if not isinstance(error, OSError):
        return None
    if error.errno in (errno.EAGAIN, errno.ENOMEM) and _is_raised_in(STARTERS, error):
        return cannot_start(error.strerror or "the system refused it")
    if error.errno == errno.ENOSPC and _is_raised_in(SEMAPHORES, error):
        return _no_shared_memory()
    if error.errno == errno.EMFILE:
        return _too_many_files()
    if "No usable temporary directory" in message:
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


def _is_raised_in(modules: tuple[str, ...], error: BaseException) -> bool:
    """Return True if one of these modules raised the error: a read may fail with the same number."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.filename.endswith(modules) for frame in frames)
