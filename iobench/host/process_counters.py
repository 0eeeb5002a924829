"""Counters of processes: descendants, processor seconds, page faults, bytes read from disk, memory."""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

_OWN_AND_REAPED = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
_KIB = 1024


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


def own_cpu_s() -> float:
    """Return the processor seconds of this process and its reaped children."""
    return sum(map(_cpu_s, _OWN_AND_REAPED))


def reaped_cpu_s() -> float:
    """Return the processor seconds of this process's reaped children."""
    return _cpu_s(resource.RUSAGE_CHILDREN)


def cpu_s(pid: int) -> float:
    """Return the processor seconds of a process and its reaped children; 0 if it has just ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


def major_faults() -> int:
    """Return the major page faults of this process and its reaped children."""
    return sum(resource.getrusage(who).ru_majflt for who in _OWN_AND_REAPED)


def disk_bytes(pid: int | str = "self") -> int | None:
    """Return the bytes read from disk by a process and its reaped children; None if unknown."""
    return _numbers(pid, "io").get("read_bytes")


@dataclass(frozen=True)
class PrivateMemory:
    """Memory that one process shares with no other (its USS), without pages of files.

    psutil's USS cannot be used: it includes pages of the page cache that only this process has mapped.
    """

    uss_bytes: int  # including shared memory segments that no other process has mapped
    anonymous_bytes: int  # without them: after a fork, the pages that the process has written to


def memory_bytes(workers: Iterable[PrivateMemory]) -> int | None:
    """Return the memory of this process and its workers, without the page cache; None if unknown.

    The whole memory of this process counts, and the USS of each worker. What workers share with this process
    counts once, and what it has inherited by fork counts. What only workers share with each other does not.
    """
    own = _numbers("self", "status")
    if "RssAnon" not in own or not reports_private():
        return None
    return (own["RssAnon"] + own["RssShmem"]) * _KIB + sum(worker.uss_bytes for worker in workers)


def private_memory(pids: Iterable[int]) -> dict[int, PrivateMemory]:
    """Return the memory of those processes that have not ended yet. Takes about 10 ms per GiB."""
    memory = {}
    for pid in pids:
        kib = _numbers(pid, "smaps_rollup")
        if "Pss_Anon" in kib:
            dirty, shared = kib["Private_Dirty"], kib["Pss_Shmem"]
            uss = min(dirty, kib["Pss_Anon"] + shared)  # pages of files not yet on disk are dirty, too
            memory[pid] = PrivateMemory(_KIB * uss, _KIB * max(0, dirty - shared))
    return memory


@cache
def reports_private() -> bool:
    """Return True if the kernel reports the private memory of a process."""
    return "Pss_Anon" in _numbers("self", "smaps_rollup")


def _cpu_s(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def _numbers(pid: int | str, name: str) -> dict[str, int]:
    """Return the lines `name: number` of a file in a process's /proc folder; none if it cannot be read."""
    try:
        text = Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return {}
    return {key: int(number) for key, number in re.findall(r"^(\w+):[ \t]*(\d+)", text, re.MULTILINE)}


def status_of(pid: int | str, name: str) -> str:
    """Return a field of a process's status, such as VmHWM, without its unit; see proc_pid_status(5).

    OSError if there is none: a process that has ended has no memory.
    """
    file = Path(f"/proc/{pid}/status")
    for line in file.read_text(errors="replace").splitlines():
        if line.startswith(f"{name}:"):
            return line.split()[1]
    raise OSError(errno.ENODATA, f"no {name}", str(file))


def _children(pid: int) -> list[int]:
    with suppress(OSError):  # the process, or one of its threads, may just have ended
        tasks = [Path(f"/proc/{pid}/task/{task}/children") for task in os.listdir(f"/proc/{pid}/task")]
        listed = list[int]()
        for task in tasks:
            with suppress(OSError):
                listed += map(int, task.read_text().split())
        return listed
    return []
