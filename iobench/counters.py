"""What an epoch cost: disk bytes, processor seconds, faults and memory, workers included."""

from __future__ import annotations

import os
import resource
import threading
from dataclasses import dataclass
from pathlib import Path

import psutil

FIRST_LOOK_S, NEXT_LOOK_S = 0.05, 0.5  # a look costs some 4 ms of one core


@dataclass(frozen=True)
class Counts:
    """Differences over a measured stretch, and the peak of its memory.

    `memory_bytes` is anonymous and shared memory by PSS, so that what workers share with their
    parent counts once; pages of the page cache that are merely mapped do not count.
    """

    disk_bytes: int
    cpu_s: float
    major_faults: int
    memory_bytes: int


class Counters:
    """Counts between `start` and `stop`. Let workers be reaped before `stop`: what they read and
    burned becomes their parent's only then."""

    def __init__(self) -> None:
        self._before = (0, 0.0, 0)
        self._peak = 0
        self._done = threading.Event()
        self._sampler: threading.Thread | None = None

    def start(self) -> None:
        """Begin counting, with a thread that looks at memory twice a second."""
        self._before = _totals()
        self._sampler = threading.Thread(target=self._watch, name="iobench-memory", daemon=True)
        self._sampler.start()

    def note_memory(self) -> None:
        """Look at memory now: while the workers still live."""
        self._peak = max(self._peak, memory_bytes())

    def stop(self) -> Counts:
        """End counting."""
        self._done.set()
        if self._sampler is not None:
            self._sampler.join()
        disk, cpu, faults = (now - then for now, then in zip(_totals(), self._before, strict=True))
        return Counts(int(disk), cpu, int(faults), self._peak)

    def _watch(self) -> None:
        pause = FIRST_LOOK_S
        while not self._done.wait(pause):
            self.note_memory()
            pause = NEXT_LOOK_S


def memory_bytes() -> int:
    """Anonymous and shared memory of this process and its children, by PSS."""
    processes = [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]
    return sum(_pss(pid) for pid in processes)


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    kib = [int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:"))]
    return 1024 * sum(kib)


def _totals() -> tuple[int, float, int]:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return (
        _read_bytes(),
        sum(u.ru_utime + u.ru_stime for u in used),
        sum(u.ru_majflt for u in used),
    )


def _read_bytes() -> int:
    """Bytes the kernel fetched from disk for this process and its reaped children."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    return 0
