"""Counters of the whole machine: processors, the disk under a path, stalled tasks."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from iobench.host.disk import block_device

Number = TypeVar("Number", int, float)

PRESSURE, STAT = Path("/proc/pressure"), Path("/proc/stat")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
SECTOR_BYTES = 512  # the unit of the kernel's counters, independent of the disk's sector size


@dataclass(frozen=True)
class CoreTimes:
    """Seconds of a processor since the start of the machine, as in proc_stat(5)."""

    processes: float = 0.0  # user, nice and system
    interrupts: float = 0.0
    idle: float = 0.0
    iowait: float = 0.0  # idle, while a task waits for a disk
    steal: float = 0.0  # given to other virtual machines by the hypervisor

    @property
    def busy(self) -> float:
        """All time in which it was not idle."""
        return self.processes + self.interrupts + self.steal

    @property
    def total(self) -> float:
        """All time."""
        return self.busy + self.idle + self.iowait

    def __sub__(self, before: CoreTimes) -> CoreTimes:
        return CoreTimes(
            *(now - then for now, then in zip(vars(self).values(), vars(before).values(), strict=True))
        )


@dataclass(frozen=True)
class DiskCounters:
    """Counters of a disk since the start of the machine."""

    read_bytes: int
    queued_ms: int  # summed over all requests, waiting or in service


@dataclass(frozen=True)
class MachineCounters:
    """Sums since the start of the machine; empty or None where the kernel keeps no account."""

    clock: float
    cores: dict[int, CoreTimes]  # by the kernel's number, because some may be offline
    disk: DiskCounters | None
    stalled_s: dict[str, float | None]  # in which some task waited for a resource

    @classmethod
    def now(cls, path: Path) -> MachineCounters:
        """Read all counters; the disk is the one under `path`."""
        stalled_s = {name: _stalled_s(name) for name in ("cpu", "io", "memory")}
        return cls(time.perf_counter(), _cores(), disk_counters(path), stalled_s)

    @property
    def disk_bytes(self) -> int | None:
        """Bytes read from the disk."""
        return self.disk.read_bytes if self.disk else None

    def core_times(self, before: MachineCounters) -> dict[int, CoreTimes]:
        """Return the times since `before` of the processors that were online at both moments."""
        return {core: self.cores[core] - before.cores[core] for core in self.cores if core in before.cores}


def difference(now: Number | None, then: Number | None) -> Number | None:
    """Return the increase of a counter; None if the kernel keeps no account."""
    return None if now is None or then is None else now - then


def disk_counters(path: Path) -> DiskCounters | None:
    """Return the kernel's counters of the disk under a path, or None without a disk or such a path.

    Fields as in the kernel's Documentation/block/stat.rst.
    """
    try:
        fields = (block_device(path) / "stat").read_text().split()
    except OSError:
        return None
    return DiskCounters(int(fields[2]) * SECTOR_BYTES, int(fields[10]))


def _cores() -> dict[int, CoreTimes]:
    try:
        lines = [line.split() for line in STAT.read_text().splitlines()]
    except OSError:
        return {}
    return {
        int(name.removeprefix("cpu")): _core_times([int(one) * TICK_S for one in ticks])
        for name, *ticks in lines
        if name.startswith("cpu") and name != "cpu"
    }


def _core_times(seconds: list[float]) -> CoreTimes:
    user, nice, system, idle, iowait, irq, softirq, steal = [*seconds, *[0.0] * 8][:8]
    return CoreTimes(user + nice + system, irq + softirq, idle, iowait, steal)


def _stalled_s(name: str) -> float | None:
    """Return the seconds in which some task waited for a resource, or None if unknown (kernel's psi.rst)."""
    with suppress(OSError, StopIteration, ValueError):
        lines = (PRESSURE / name).read_text().splitlines()
        some = next(line for line in lines if line.startswith("some "))
        return int(some.rpartition("total=")[2]) / 1e6
    return None
