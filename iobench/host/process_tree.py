"""Descendants of a process."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil


def descendants(of: int | None = None) -> list[int]:
    """Return the ids of all descendants of a process, by default of this one.

    Linux lists a process's children directly; psutil has to look at every process of the machine.
    """
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():  # a kernel built without
        return [child.pid for child in psutil.Process(of).children(recursive=True)]
    below, rest = list[int](), [os.getpid() if of is None else of]
    while rest:
        children = _children(rest.pop())
        below += children
        rest += children
    return below


def _children(pid: int) -> list[int]:
    with suppress(OSError):  # the process, or one of its threads, may just have ended
        tasks = [Path(f"/proc/{pid}/task/{task}/children") for task in os.listdir(f"/proc/{pid}/task")]
        listed = list[int]()
        for task in tasks:
            with suppress(OSError):
                listed += map(int, task.read_text().split())
        return listed
    return []
