"""Load of the whole machine, of other processes on it, and of this one: processors, disks, memory, GPU.

`MachineCounters` holds the kernel's counters at one moment, `BackgroundLoadMonitor` compares two of them
with what this process used itself, `Counters` adds what it used, and `Monitor` takes a snapshot once a
second. `CpuSpeedProbe` measures the speed of the processor, which heat and other virtual machines change.
"""

from __future__ import annotations

import gc
import os
import statistics
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from iobench.base.machine import BackgroundLoad, Snapshot
from iobench.host import process_counters
from iobench.host.device import Gpu, device_named
from iobench.host.machine_info import block_device
from iobench.host.process_counters import descendants

Number = TypeVar("Number", int, float)
Item = TypeVar("Item")

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
    cores = {}
    for name, *ticks in lines:
        if name.startswith("cpu") and name != "cpu":
            seconds = [int(one) * TICK_S for one in ticks]
            user, nice, system, idle, iowait, irq, softirq, steal = [*seconds, *[0.0] * 8][:8]
            times = CoreTimes(user + nice + system, irq + softirq, idle, iowait, steal)
            cores[int(name.removeprefix("cpu"))] = times
    return cores


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

    `before` and `after` are the counters of the machine at both ends of the interval.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def start(self) -> None:
        """Begin the interval."""
        self.before = MachineCounters.now(self._path)
        self._own_before = own_cpu_s(), own_disk_bytes()

    def stop(self) -> BackgroundLoad:
        """End the interval and return the load."""
        before, after = self.before, MachineCounters.now(self._path)
        self.after, own_s, own_bytes = after, own_cpu_s(), own_disk_bytes()
        before_s, before_bytes = self._own_before
        elapsed = max(after.clock - before.clock, 1e-9)
        usable = os.sched_getaffinity(0)
        cores = [times for core, times in after.core_times(before).items() if core in usable]
        whole = elapsed * len(usable)
        used_s = sum(times.processes for times in cores) - (own_s - before_s)
        own_read = difference(own_bytes, before_bytes)
        read = difference(difference(after.disk_bytes, before.disk_bytes), own_read)
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
        return Snapshot(
            time=time.time(),
            cores=[round(max(0.0, times.busy / (times.total or 1)), 3) for times in cores],
            iowait=sum(max(0.0, times.iowait / (times.total or 1)) for times in cores) / max(1, len(cores)),
            disk_bytes_per_s=disk,
            disk_queue=queue,
            **self._gpu.snapshot(),
        )


CPU_SPEED_S = 0.003  # of one sample of the speed of the processor
CPU_SPEED_EVERY_S = 0.05  # minimum time between samples
WORK = 2000  # steps of one piece of work: about 0.1 ms


class CpuSpeedProbe:
    """Samples the speed of the processor in the pauses of another measurement."""

    def __init__(self) -> None:
        self.used_s = 0.0  # processor seconds spent in `sample`
        self._samples = [cpu_speed()]
        self._sampled_at = time.perf_counter()

    def sample(self) -> None:
        """Take a sample, unless the last one is less than CPU_SPEED_EVERY_S old."""
        if time.perf_counter() - self._sampled_at >= CPU_SPEED_EVERY_S:
            began = time.thread_time()
            self._samples.append(cpu_speed())
            self.used_s += time.thread_time() - began
            self._sampled_at = time.perf_counter()

    def stop(self) -> float:
        """Take a last sample and return the mean of all, in the unit of `cpu_speed`."""
        return statistics.fmean([*self._samples, cpu_speed()])


def cpu_speed() -> float:
    """Measure pieces of plain Python work per second in this thread; the median over CPU_SPEED_S.

    On a virtual machine two threads may share a core without the kernel's knowledge. Each then runs at 0.6
    of its speed, which neither steal time nor the load of other processes shows.
    """
    taken, began = list[float](), time.perf_counter()
    while not taken or time.perf_counter() - began < CPU_SPEED_S:
        before = time.perf_counter()
        _piece()
        taken.append(time.perf_counter() - before)
    return 1 / statistics.median(taken)


def _piece() -> int:
    total, held = 0, {}
    for number in range(WORK):
        held[number & 63] = total
        total += number ^ held[number & 31 & len(held) - 1]
    return total


Sample = Callable[[], float]  # takes a sample and returns the seconds until the next one

STILL_S = 1.0  # lateness of a sample above which this process may have been suspended,
STILL_CPU = 0.1  # unless it used this share of that time: then a library held the interpreter's lock


class Sampler:
    """Thread that takes samples between `start` and `stop`, the first ones after `first_s`."""

    def __init__(self, *samples: Sample, first_s: float) -> None:
        self._samples, self._first_s = samples, first_s
        self._wake, self._done = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="iobench-sampler", daemon=True)
        self.suspended_s = 0.0  # in which this process did not run

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after the sample that it is taking."""
        self._done = True
        self._wake.set()
        self._thread.join()

    def wake(self) -> None:
        """Have all samples taken now."""
        self._wake.set()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Take samples until the block ends."""
        self.start()
        try:
            yield
        finally:
            self.stop()

    def _run(self) -> None:
        due = dict.fromkeys(self._samples, time.monotonic() + self._first_s)
        while self._wait(min(due.values())):
            now, woken = time.monotonic(), self._wake.is_set()
            self._wake.clear()
            for sample in [sample for sample, at in due.items() if woken or at <= now]:
                pause_s = sample()
                due[sample] = time.monotonic() + pause_s

    def _wait(self, until: float) -> bool:
        """Wait until then, or until woken; return False at the end."""
        used_s = time.process_time()
        self._wake.wait(max(0.0, until - time.monotonic()))
        late_s = time.monotonic() - until
        if late_s > STILL_S and time.process_time() - used_s < STILL_CPU * late_s:
            self.suspended_s += late_s
        return not self._done


class CollectorTime:
    """Time that the collector takes in the thread of a `with` block, in `ns`.

    What a signal's handler raises in a function that the collector calls is lost: Ctrl-C, or torch's error
    for a dead worker. So the collector calls a generator, which can keep it; `over` and the end of the
    block raise it.
    """

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock, self.ns, self._thread = clock, 0, 0
        self._kept: BaseException | None = None
        noting = self._noting()
        next(noting)
        self._note = partial(min, key=noting.send)  # `min` sends it the two arguments, phase and details

    def __enter__(self) -> CollectorTime:
        self._thread = threading.get_ident()
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        gc.callbacks.remove(self._note)
        self._raise(error)

    def over(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items; raises before one what a handler raised meanwhile."""
        for item in items:
            if self._kept is not None:
                self._raise()
            yield item

    def _raise(self, instead_of: BaseException | None = None) -> None:
        kept, self._kept = self._kept, None
        if kept is not None and not isinstance(instead_of, GeneratorExit):
            raise kept from instead_of

    def _noting(self) -> Generator[int, object, None]:
        began = 0
        while True:
            try:
                phase = yield 0
                if threading.get_ident() != self._thread:
                    continue
                if phase == "start":
                    began = self._clock()
                elif phase == "stop":
                    self.ns += self._clock() - began
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - a handler raises anything
                self._kept = self._kept or error


SNAPSHOT_S = 0.5  # between memory snapshots, each of which takes a few ms of one core
EARLY_SNAPSHOT_S = 0.05  # before the first one: workers of a short epoch end soon


@dataclass(frozen=True)
class Counts:
    """Resources used over an interval; a field is None if the kernel does not account for it.

    `memory_bytes` is the peak memory of this process plus the USS of its workers: memory that they share
    with it counts once, mapped pages of the page cache do not count. `device_disk_bytes` is of the whole
    machine, `background` is the load of other processes. In `suspended_s` this process did not run.
    """

    disk_bytes: int | None
    cpu_s: float
    major_faults: int
    memory_bytes: int | None
    device_disk_bytes: int | None
    background: BackgroundLoad
    suspended_s: float


class Counters:
    """Measures the resources used between `start` and `stop`.

    Reap workers before `stop`: only then are their disk bytes and processor seconds added to this process.

    `path` is on the disk under the data. With `early_snapshot` the first memory snapshot is taken after
    EARLY_SNAPSHOT_S. The memory of the `excluded` processes does not count: they belong to something else.
    """

    def __init__(self, path: Path, early_snapshot: bool = False, excluded: Collection[int] = ()) -> None:
        self._background_load, self._excluded = BackgroundLoadMonitor(path), excluded
        self._before: dict[str, Any] = {}
        self._snapshots: list[int] = []
        self._sampler = Sampler(self._sample, first_s=EARLY_SNAPSHOT_S if early_snapshot else SNAPSHOT_S)

    def start(self) -> None:
        """Begin the interval, with a thread that takes memory snapshots twice a second."""
        self._background_load.start()
        self._before = self._sums(self._background_load.before)
        self._sampler.start()

    def disk_so_far(self) -> int | None:
        """Return the bytes read from disk since `start` by this process and its reaped children."""
        return difference(process_counters.disk_bytes(), self._before["disk_bytes"])

    def note_memory(self) -> None:
        """Take a memory snapshot now."""
        workers = process_counters.private_memory(pid for pid in descendants() if pid not in self._excluded)
        if (snapshot := process_counters.memory_bytes(workers.values())) is not None:
            self._snapshots.append(snapshot)

    def stop(self) -> Counts:
        """End the interval and return its counts."""
        self._sampler.stop()
        background = self._background_load.stop()
        before, now = self._before, self._sums(self._background_load.after)
        used: dict[str, Any] = {name: difference(now[name], before[name]) for name in now}
        return Counts(
            **used,
            memory_bytes=max(self._snapshots, default=None),
            background=background,
            suspended_s=self._sampler.suspended_s,
        )

    def _sums(self, machine: MachineCounters) -> dict[str, Any]:
        """Return sums since the start of this process or of the machine, named as in `Counts`."""
        return {
            "disk_bytes": process_counters.disk_bytes(),
            "cpu_s": process_counters.own_cpu_s(),
            "major_faults": process_counters.major_faults(),
            "device_disk_bytes": machine.disk_bytes,
        }

    def _sample(self) -> float:
        self.note_memory()
        return SNAPSHOT_S
