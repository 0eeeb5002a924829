"""A control group that limits a process to a tenth of a CPU: a slow host."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

QUOTA_US, PERIOD_US = 1_000, 10_000  # short periods, so that it is slow rather than alternating
FIRST, SECOND = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")  # versions of control groups


@contextmanager
def slow() -> Iterator[Callable[[int], None]]:
    """Yield a function that slows down a process and its later children until the block ends."""
    root = FIRST if FIRST.is_dir() else SECOND
    group = root / f"iobench-hosts-{os.getpid()}"
    try:
        if root == SECOND:
            (root / "cgroup.subtree_control").write_text("+cpu")
        group.mkdir()
        for name, text in _limits(root):
            (group / name).write_text(text)
    except OSError as error:
        raise SystemExit(f"cannot create a control group: {error}") from None
    try:
        yield lambda process: _move(process, group)
    finally:
        _remove(group, root)


def _limits(root: Path) -> list[tuple[str, str]]:
    if root == FIRST:
        return [("cpu.cfs_period_us", str(PERIOD_US)), ("cpu.cfs_quota_us", str(QUOTA_US))]
    return [("cpu.max", f"{QUOTA_US} {PERIOD_US}")]


def _move(process: int, group: Path) -> None:
    (group / "cgroup.procs").write_text(str(process))


def _remove(group: Path, root: Path) -> None:
    """Move the remaining processes back, because only an empty group can be removed."""
    for _ in range(50):
        for process in (group / "cgroup.procs").read_text().split():
            _move(int(process), root)
        try:
            group.rmdir()
            return
        except OSError:  # a process is ending
            time.sleep(0.1)
