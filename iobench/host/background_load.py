"""Load of other processes on the machine during a measurement: processors, disk, stalled tasks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from iobench.host import machine_info, process_usage
from iobench.host.process_tree import descendants

PRESSURE, STAT = Path("/proc/pressure"), Path("/proc/stat")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class BackgroundLoad:
    """Load of other processes over an interval; a field is None if the kernel does not account for it.

    `processors` and `steal` are shares of the time of the processors that this process may use. The
    stalled shares are the part of the interval in which at least one task of the machine, of this run or
    not, waited for that resource (pressure stall information, the kernel's
    Documentation/accounting/psi.rst).
    """

    processors: float | None = None  # used by other processes
    steal: float | None = None  # given to other virtual machines by the hypervisor
    disk_bytes_per_s: float | None = None  # read by other processes from the disk under the data
    cpu_stalled: float | None = None
    io_stalled: float | None = None
    memory_stalled: float | None = None


_excluded: set[int] = set()  # processes that belong to the same run


def exclude_processes(processes: Iterable[int]) -> None:
    """Count these processes and their descendants as part of this run: its ranks on this host."""
    _excluded.update(set(processes) - {os.getpid()})


class BackgroundLoadMonitor:
    """Measures the load of other processes: the machine's, minus that of this run's processes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def start(self) -> None:
        """Begin the interval."""
        self._before = _LoadCounters.now(self._path)

    def stop(self) -> BackgroundLoad:
        """End the interval and return the load."""
        before, now = self._before, _LoadCounters.now(self._path)
        elapsed = max(now.clock - before.clock, 1e-9)
        stalled = {
            name: None if now.stalled_s[name] is None else _share(now.stalled_s[name], then, elapsed)
            for name, then in before.stalled_s.items()
        }
        whole = elapsed * len(os.sched_getaffinity(0))
        rate = _rest(now.disk_bytes, before.disk_bytes, now.own_disk_bytes, before.own_disk_bytes)
        busy = _rest(now.busy_s, before.busy_s, now.own_s, before.own_s)
        return BackgroundLoad(
            processors=None if busy is None else min(1.0, busy / whole),
            steal=_share(now.steal_s, before.steal_s, whole),
            disk_bytes_per_s=None if rate is None else rate / elapsed,
            cpu_stalled=stalled["cpu"],
            io_stalled=stalled["io"],
            memory_stalled=stalled["memory"],
        )


@dataclass(frozen=True)
class _LoadCounters:
    """Sums since the start of the machine or of this process."""

    clock: float
    busy_s: float | None
    steal_s: float | None
    own_s: float
    disk_bytes: int | None
    own_disk_bytes: int | None
    stalled_s: dict[str, float | None]

    @classmethod
    def now(cls, path: Path) -> _LoadCounters:
        busy, steal = _processors()
        disk = machine_info.disk_counters(path)
        return cls(
            clock=time.perf_counter(),
            busy_s=busy,
            steal_s=steal,
            own_s=own_cpu_s(),
            disk_bytes=disk.read_bytes if disk else None,
            own_disk_bytes=own_disk_bytes(),
            stalled_s={name: _stalled_s(name) for name in ("cpu", "io", "memory")},
        )


def own_cpu_s() -> float:
    """Return the processor seconds of this process and of its children, reaped and living."""
    return process_usage.own_cpu_s() + sum(map(process_usage.cpu_s, _own_processes()))


def own_disk_bytes() -> int | None:
    """Return the bytes read from disk for this process and its children, reaped and living.

    None if the kernel does not account for them.
    """
    own = process_usage.disk_bytes()
    return None if own is None else own + sum(process_usage.disk_bytes(one) or 0 for one in _own_processes())


def _own_processes() -> set[int]:
    """Return all processes of this run but this one."""
    return {*descendants(), *(below for one in _excluded for below in (one, *descendants(one)))}


def _processors() -> tuple[float | None, float | None]:
    """Return busy and stolen seconds of the processors that this process may use.

    psutil's list lacks the processors that are offline, and thereby the numbers of the others.
    """
    usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    try:
        lines = [line.split() for line in STAT.read_text().splitlines()]
    except OSError:
        return None, None
    each = [list(map(int, ticks)) for name, *ticks in lines if name in usable]
    busy = sum(sum(ticks[:3]) for ticks in each)  # user, nice, system
    return busy * TICK_S, sum(ticks[7] if len(ticks) > 7 else 0 for ticks in each) * TICK_S


def _stalled_s(name: str) -> float | None:
    """Return the seconds in which some task waited for a resource, or None if unknown."""
    with suppress(OSError, StopIteration, ValueError):
        lines = (PRESSURE / name).read_text().splitlines()
        some = next(line for line in lines if line.startswith("some "))
        return int(some.rpartition("total=")[2]) / 1e6
    return None


def _share(now: float | None, then: float | None, whole: float) -> float | None:
    return None if now is None or then is None else max(0.0, min(1.0, (now - then) / whole))


def _rest(now: float | None, then: float | None, own: float | None, own_then: float | None) -> float | None:
    """Return the growth of a sum minus the growth of this run's part; None if either is unknown."""
    if now is None or then is None or own is None or own_then is None:
        return None
    return max(0.0, (now - then) - (own - own_then))
