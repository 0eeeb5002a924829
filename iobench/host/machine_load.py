"""Load of the whole machine, and of other processes on it: processors, disks, stalled tasks, GPU.

`MachineCounters` holds the kernel's counters at one moment, `BackgroundLoadMonitor` compares two of them
with what this process used itself, and `Monitor` takes a snapshot once a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from iobench.base.background_load import BackgroundLoad
from iobench.base.snapshot import Snapshot
from iobench.host import process_counters
from iobench.host.device import device_named
from iobench.host.disk import block_device
from iobench.host.nvml import Gpu
from iobench.host.process_counters import descendants
from iobench.host.sampler import Sampler

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


_excluded: set[int] = set()  # processes that belong to the same run


def exclude_processes(processes: Iterable[int]) -> None:
    """Count these processes and their descendants as part of this run: its ranks on this host."""
    _excluded.update(set(processes) - {os.getpid()})


class BackgroundLoadMonitor:
    """Measures the load of other processes: the machine's, minus that of this run's processes.

    Attributes
    ----------
    before, after : MachineCounters
        Counters of the machine at both ends of the interval.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def start(self) -> None:
        """Begin the interval."""
        self.before, self._own_before = MachineCounters.now(self._path), _OwnCounters.now()

    def stop(self) -> BackgroundLoad:
        """End the interval and return the load."""
        before, after = self.before, MachineCounters.now(self._path)
        self.after, own = after, _OwnCounters.now()
        elapsed = max(after.clock - before.clock, 1e-9)
        usable = os.sched_getaffinity(0)
        cores = [times for core, times in after.core_times(before).items() if core in usable]
        whole = elapsed * len(usable)
        used_s = sum(times.processes for times in cores) - (own.cpu_s - self._own_before.cpu_s)
        own_bytes = difference(own.disk_bytes, self._own_before.disk_bytes)
        read = difference(difference(after.disk_bytes, before.disk_bytes), own_bytes)
        stalled = {
            name: _share(difference(after.stalled_s[name], then), elapsed)
            for name, then in before.stalled_s.items()
        }
        return BackgroundLoad(
            processors=_share(used_s, whole) if cores else None,
            steal=_share(sum(times.steal for times in cores), whole) if cores else None,
            disk_bytes_per_s=None if read is None else max(0.0, read) / elapsed,
            cpu_stalled=stalled["cpu"],
            io_stalled=stalled["io"],
            memory_stalled=stalled["memory"],
        )


@dataclass(frozen=True)
class _OwnCounters:
    """Sums of this run's processes, since the start of each."""

    cpu_s: float
    disk_bytes: int | None

    @classmethod
    def now(cls) -> _OwnCounters:
        return cls(own_cpu_s(), own_disk_bytes())


def own_cpu_s() -> float:
    """Return the processor seconds of this process and of its children, reaped and living."""
    return process_counters.own_cpu_s() + sum(map(process_counters.cpu_s, _own_processes()))


def own_disk_bytes() -> int | None:
    """Return the bytes read from disk for this process and its children, reaped and living.

    None if the kernel does not account for them.
    """
    own = process_counters.disk_bytes()
    return (
        None if own is None else own + sum(process_counters.disk_bytes(one) or 0 for one in _own_processes())
    )


def _own_processes() -> set[int]:
    """Return all processes of this run but this one."""
    return {*descendants(), *(below for one in _excluded for below in (one, *descendants(one)))}


def _share(part: float | None, whole: float) -> float | None:
    return None if part is None else max(0.0, min(1.0, part / whole))


EVERY_S = 1.0


class Monitor:
    """Takes a snapshot of the machine once a second: a sample for a Sampler."""

    def __init__(self, path: Path, device: str, every_s: float | None = None) -> None:
        self._path, self.every_s = path, every_s or EVERY_S
        self._gpu = Gpu() if device == "cpu" else Gpu.of(device_named(device).uuid)
        self._snapshots: list[Snapshot] = []
        self._before = MachineCounters.now(path)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Take snapshots until the block ends."""
        self._before = MachineCounters.now(self._path)
        with closing(self), Sampler(self.sample, first_s=self.every_s).active():
            yield

    def take(self) -> list[Snapshot]:
        """Return the snapshots since the last call."""
        taken, self._snapshots = self._snapshots, []
        return taken

    def sample(self) -> float:
        """Take a snapshot; return the seconds until the next one."""
        now = MachineCounters.now(self._path)
        self._snapshots.append(self._snapshot(self._before, now))
        self._before = now
        return self.every_s

    def close(self) -> None:
        """Release the GPU's driver."""
        self._gpu.close()

    def _snapshot(self, before: MachineCounters, now: MachineCounters) -> Snapshot:
        elapsed = max(now.clock - before.clock, 1e-9)
        cores = now.core_times(before).values()
        disk = queue = None
        if before.disk is not None and now.disk is not None:
            disk = (now.disk.read_bytes - before.disk.read_bytes) / elapsed
            queue = (now.disk.queued_ms - before.disk.queued_ms) / 1000 / elapsed
        gpu = self._gpu.snapshot()
        return Snapshot(
            time=time.time(),
            cores=[round(max(0.0, times.busy / (times.total or 1)), 3) for times in cores],
            iowait=sum(max(0.0, times.iowait / (times.total or 1)) for times in cores) / max(1, len(cores)),
            disk_bytes_per_s=disk,
            disk_queue=queue,
            gpu=gpu.busy,
            gpu_memory_bytes=gpu.memory_bytes,
            gpu_power_w=gpu.power_w,
            gpu_clock_mhz=gpu.clock_mhz,
            gpu_throttled=gpu.throttled,
        )
