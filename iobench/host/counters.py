"""Resources used by an epoch, workers included: disk bytes, processor seconds, garbage collection, memory."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iobench.base.background_load import BackgroundLoad
from iobench.host import process_counters
from iobench.host.machine_load import BackgroundLoadMonitor, MachineCounters, difference
from iobench.host.process_counters import descendants
from iobench.host.sampler import Sampler


class CollectorTime:
    """Time that the collector takes in the thread of a `with` block, in `ns`."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock, self.ns = clock, 0
        self._thread = self._began = 0

    def __enter__(self) -> CollectorTime:
        self._thread = threading.get_ident()
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: Mapping[str, Any]) -> None:
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._began = self._clock()
        else:
            self.ns += self._clock() - self._began


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
