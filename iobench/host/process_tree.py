"""The processes below this one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil


def descendants(of: int | None = None) -> list[int]:
    """The processes below a process, by default below this one, by number.

    Linux tells a process's children at once; psutil has to look at every process of the machine.
    """
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():  # a kernel built without
        return [child.pid for child in psutil.Process(of).children(recursive=True)]
    found, rest = list[int](), [os.getpid() if of is None else of]
    while rest:
        below = _children(rest.pop())
        found += below
        rest += below
    return found


def _children(pid: int) -> list[int]:
    with suppress(OSError):  # it may just have ended, as may each of its threads
        tasks = [Path(f"/proc/{pid}/task/{task}/children") for task in os.listdir(f"/proc/{pid}/task")]
        listed = list[int]()
        for task in tasks:
            with suppress(OSError):
                listed += map(int, task.read_text().split())
        return listed
    return []
