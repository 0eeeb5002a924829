"""What an epoch cost: disk bytes, processor seconds, faults and memory, workers included."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from iobench.host import machine_info
from iobench.host.background_load import BackgroundLoad, BackgroundLoadMonitor
from iobench.host.process_tree import descendants

Number = TypeVar("Number", int, float)

SNAPSHOT_S = 0.5  # a look costs some 4 ms of one core
EARLY_SNAPSHOT_S = 0.05  # for workers, which end with a short epoch


@dataclass(frozen=True)
class Counts:
    """Differences over a measured stretch, and the peak of its memory.

    `memory_bytes` is anonymous and shared memory by PSS, so that what workers share with their
    parent counts once; pages of the page cache that are merely mapped do not count. `steal_s` and
    `device_disk_bytes` are of the whole machine, `others` is what other processes did to it. None where
    the kernel keeps no such account.
    """

    disk_bytes: int | None
    cpu_s: float
    major_faults: int
    memory_bytes: int | None
    steal_s: float | None
    device_disk_bytes: int | None
    others: BackgroundLoad


class Counters:
    """Counts between `start` and `stop`, of this process and of the disk under `path`.

    Let workers be reaped before `stop`: what they read and burned becomes their parent's only then.
    The memory of processes that are `apart`, by number, does not count: they are somebody else's.
    """

    def __init__(self, path: Path, early_snapshot: bool = False, excluded: Collection[int] = ()) -> None:
        self._path, self._background_load, self._excluded = path, BackgroundLoadMonitor(path), excluded
        self._pause = EARLY_SNAPSHOT_S if early_snapshot else SNAPSHOT_S
        self._before: tuple[int | None, float | None, int | None] = (None, None, None)
        self._used = (0.0, 0)
        self._snapshots: list[int] = []
        self._done = threading.Event()
        self._sampler: threading.Thread | None = None

    def start(self) -> None:
        """Begin counting, with a thread that looks at memory twice a second."""
        self._background_load.start()
        self._before, self._used = self._accounts(), _used()
        self._sampler = threading.Thread(target=self._watch, name="iobench-memory", daemon=True)
        self._sampler.start()

    def disk_so_far(self) -> int | None:
        """Bytes that came from disk since `start` for this process and its reaped children."""
        return _difference(disk_bytes(), self._before[0])

    def note_memory(self) -> None:
        """Look at memory now."""
        if (seen := memory_bytes(self._excluded)) is not None:
            self._snapshots.append(seen)

    def stop(self) -> Counts:
        """End counting."""
        self._done.set()
        if self._sampler is not None:
            self._sampler.join()
        (disk, steal, device), before = self._accounts(), self._before
        cpu, faults = (now - then for now, then in zip(_used(), self._used, strict=True))
        return Counts(
            disk_bytes=_difference(disk, before[0]),
            cpu_s=cpu,
            major_faults=int(faults),
            memory_bytes=max(self._snapshots, default=None),
            steal_s=_difference(steal, before[1]),
            device_disk_bytes=_difference(device, before[2]),
            others=self._background_load.stop(),
        )

    def _accounts(self) -> tuple[int | None, float | None, int | None]:
        steal, device = getattr(psutil.cpu_times(), "steal", None), machine_info.disk_counters(self._path)
        return disk_bytes(), steal, device.read_bytes if device else None

    def _watch(self) -> None:
        while not self._done.wait(self._pause):
            self.note_memory()
            self._pause = SNAPSHOT_S


@dataclass(frozen=True)
class Memory:
    """Anonymous and shared memory of one process: its part by PSS, and what no other process shares."""

    pss_bytes: int
    private_bytes: int  # anonymous: after a fork, what the process has written to


def memory_bytes(excluded: Collection[int] = ()) -> int | None:
    """Anonymous and shared memory of this process and those below it, by PSS; None where untold.

    Without those that are `apart`, by number.
    """
    own = process_memory(os.getpid())
    if own is None:
        return None
    counted = (pid for pid in descendants() if pid not in excluded)
    found = map(process_memory, counted)  # one of them may just have ended
    return own.pss_bytes + sum(memory.pss_bytes for memory in found if memory)


def process_memory(pid: int) -> Memory | None:
    """The memory of one process; None where the kernel does not tell. Takes some 10 ms for each GiB."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines[1:])}
    if "Pss_Anon" not in kib:
        return None
    shared = kib["Pss_Shmem"]
    return Memory(1024 * (kib["Pss_Anon"] + shared), 1024 * max(0, kib["Private_Dirty"] - shared))


def _difference(now: Number | None, then: Number | None) -> Number | None:
    return None if now is None or then is None else now - then


def _used() -> tuple[float, int]:
    """Processor seconds and major faults of this process and its reaped children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used), sum(u.ru_majflt for u in used)


def disk_bytes() -> int | None:
    """Bytes the kernel fetched from disk for this process and its reaped children."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes:")), None)
