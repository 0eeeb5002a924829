"""A control group with little memory, so that a machine with much shows what happens where it ends."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from iobench.host import cache

NO_SWAP = {"memory.swap.max": "0", "memory.memsw.limit_in_bytes": "{}"}  # of version 2 and of version 1
RELEASE_S = 5.0  # for the kernel to see that the last process of a group has ended


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """The folder of a new control group with that limit, gone afterwards; PermissionError if not allowed."""
    group = _made(limit_bytes)
    try:
        yield group
    finally:
        _remove(group)


def join(group: Path) -> None:
    """Move this process into a group: what it takes from now on counts there."""
    (group / "cgroup.procs").write_text(str(os.getpid()))


def _made(limit_bytes: int) -> Path:
    """Below our own group or beside it: version 2 limits no group below one that has processes."""
    name, reason = f"iobench-{os.getpid()}", "no control group accounts for memory here"
    for parent in (place for own in cache.memory_groups() for place in (own, own.parent)):
        group = parent / name
        try:
            group.mkdir()
        except OSError as error:
            reason = f"{group}: {error.strerror}"
            continue
        try:
            limit = next(group / file for file in cache.LIMIT_FILES if (group / file).exists())
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
