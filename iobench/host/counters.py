"""Resources used by an epoch, workers included: disk bytes, processor seconds, faults, memory."""

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

SNAPSHOT_S = 0.5  # between memory snapshots, each of which takes about 4 ms of one core
EARLY_SNAPSHOT_S = 0.05  # before the first one: workers of a short epoch end soon


@dataclass(frozen=True)
class Counts:
    """Resources used over an interval; a field is None if the kernel does not account for it.

    `memory_bytes` is the peak of anonymous and shared memory by PSS: memory that workers share with their
    parent counts once, mapped pages of the page cache do not count. `steal_s` and `device_disk_bytes` are
    of the whole machine, `background` is the load of other processes.
    """

    disk_bytes: int | None
    cpu_s: float
    major_faults: int
    memory_bytes: int | None
    steal_s: float | None
    device_disk_bytes: int | None
    background: BackgroundLoad


class Counters:
    """Measures the resources used between `start` and `stop`.

    Reap workers before `stop`: only then are their disk bytes and processor seconds added to this process.

    Parameters
    ----------
    path : Path
        A path on the disk under the data.
    early_snapshot : bool
        Take the first memory snapshot after EARLY_SNAPSHOT_S.
    excluded : collection of int
        Process ids whose memory does not count, because they belong to something else.
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
        """Begin the interval, with a thread that takes memory snapshots twice a second."""
        self._background_load.start()
        self._before, self._used = self._accounts(), _used()
        self._sampler = threading.Thread(target=self._watch, name="iobench-memory", daemon=True)
        self._sampler.start()

    def disk_so_far(self) -> int | None:
        """Return the bytes read from disk since `start` by this process and its reaped children."""
        return _difference(disk_bytes(), self._before[0])

    def note_memory(self) -> None:
        """Take a memory snapshot now."""
        if (snapshot := memory_bytes(self._excluded)) is not None:
            self._snapshots.append(snapshot)

    def stop(self) -> Counts:
        """End the interval and return its counts."""
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
            background=self._background_load.stop(),
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
    """Anonymous and shared memory of one process."""

    pss_bytes: int
    private_bytes: int  # anonymous and not shared: after a fork, the pages that the process has written to


def memory_bytes(excluded: Collection[int] = ()) -> int | None:
    """Return the PSS bytes of this process and its descendants without `excluded`; None if unknown."""
    own = process_memory(os.getpid())
    if own is None:
        return None
    counted = (pid for pid in descendants() if pid not in excluded)
    memories = map(process_memory, counted)  # None if the process has just ended
    return own.pss_bytes + sum(memory.pss_bytes for memory in memories if memory)


def process_memory(pid: int) -> Memory | None:
    """Return the memory of one process, or None if unknown. Takes about 10 ms per GiB."""
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
    """Return processor seconds and major faults of this process and its reaped children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used), sum(u.ru_majflt for u in used)


def disk_bytes() -> int | None:
    """Return the bytes read from disk by this process and its reaped children; None if unknown."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes:")), None)
