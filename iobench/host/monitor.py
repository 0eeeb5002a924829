"""Sample the whole machine once a second: processors, disk, GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from iobench.base.snapshot import Snapshot
from iobench.host.device import device_named
from iobench.host.device.nvml import Gpu
from iobench.host.machine_counters import MachineCounters
from iobench.host.sampler import Sampler

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
