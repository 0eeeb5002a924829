"""A control group with little memory, to measure what happens when memory is full."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from iobench.host import page_cache

NO_SWAP = {"memory.swap.max": "0", "memory.memsw.limit_in_bytes": "{}"}  # cgroup version 2, version 1
RELEASE_S = 5.0  # for the kernel to notice that the last process of a group has ended


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """Yield the folder of a temporary control group with a memory limit; PermissionError if not allowed."""
    group = _create(limit_bytes)
    try:
        yield group
    finally:
        _remove(group)


def join(group: Path) -> None:
    """Move this process into a group, where all memory that it allocates from now on counts."""
    (group / "cgroup.procs").write_text(str(os.getpid()))


def _create(limit_bytes: int) -> Path:
    """Create the group below this process's group or next to it.

    Version 2 has no limits below a group that has processes.
    """
    name, reason = f"iobench-{os.getpid()}", "no control group accounts for memory here"
    for parent in (folder for own in page_cache.memory_groups() for folder in (own, own.parent)):
        group = parent / name
        try:
            group.mkdir()
        except OSError as error:
            reason = f"{group}: {error.strerror}"
            continue
        try:
            limit = next(group / file for file in page_cache.LIMIT_FILES if (group / file).exists())
            limit.write_text(str(limit_bytes))
            for file, value in NO_SWAP.items():
                if (group / file).exists():
                    (group / file).write_text(value.format(limit_bytes))
            return group
        except (OSError, StopIteration) as error:
            reason = f"{group}: memory cannot be limited here ({error})" if str(error) else reason
            group.rmdir()
    raise PermissionError(reason)


def _remove(group: Path) -> None:
    until = time.monotonic() + RELEASE_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.05)
