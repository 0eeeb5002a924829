"""Load of other processes on the machine during a measurement: processors, disk, stalled tasks."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from iobench.base.background_load import BackgroundLoad
from iobench.host import process_counters
from iobench.host.machine_counters import MachineCounters, difference
from iobench.host.process_counters import descendants

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
