"""Memory that this process may use, by the machine and by its control groups."""

from __future__ import annotations

import math
import time
from pathlib import Path

import psutil

from iobench.base.thresholds import BACKED_BYTES_PER_S
from iobench.host.memory import PAGE, touched_map

CONTROL_GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")  # of version 2 and of version 1
PREFAULT = 1.2  # times the bytes to be read
BACKING = (PREFAULT, 3.0, 9.0)  # times them, one after the other as long as touching is slow
MIN_RATED_BYTES = 64 << 20  # for less, the rate of touching memory says little


def free_memory() -> float:
    """Return the bytes that this process may still allocate, by the machine and its control groups."""
    return min(psutil.virtual_memory().available, _memory_limit())


def total_memory() -> float:
    """Return the bytes of the machine's memory, or of the control groups' limit if that is lower."""
    return min(psutil.virtual_memory().total, _memory_limit())


def memory_groups() -> list[Path]:
    """Return the folders of the control groups that account for this process's memory."""
    lines = [line.split(":", 2) for line in OWN_GROUPS.read_text().splitlines()]
    return [
        CONTROL_GROUPS / controllers / path.lstrip("/")
        for _, controllers, path in lines
        if controllers in ("", "memory")
    ]


def _memory_limit() -> float:
    """Return the lowest memory limit, in bytes, of this process's control groups; inf without one."""
    folders = {above for folder in memory_groups() for above in (folder, *folder.parents)}
    files = [folder / name for folder in folders for name in LIMIT_FILES]
    limits = [file.read_text().strip() for file in files if file.is_file()]
    return min((int(limit) for limit in limits if limit.isdecimal()), default=math.inf)


def back_memory(logical_bytes: int) -> float | None:
    """Prefault memory for a round over `logical_bytes`, and more of it as long as that is slow.

    Slow touching means that the hypervisor still had to back the pages, and would have to back the
    round's own, too. Returns the first rate in bytes/s, or None if nothing was touched.
    """
    rates = []
    for times in BACKING:
        rates.append(prefault(int(times * logical_bytes)))
        rate = rates[-1]
        if rate is None or rate > BACKED_BYTES_PER_S or logical_bytes < MIN_RATED_BYTES:
            break
    return rates[0]


def prefault(count: int) -> float | None:
    """Touch `count` bytes of memory, at most half of the free memory, then release them.

    In a virtual machine that returns free pages to its host, the first touch of a page costs more than
    reading it from disk. Paid here, it is not part of a round. Returns bytes/s, or None if nothing was
    touched.
    """
    count = int(min(count, free_memory() // 2)) // PAGE * PAGE
    if count == 0:
        return None
    before = time.perf_counter()
    touched_map(count).close()
    return count / (time.perf_counter() - before)
