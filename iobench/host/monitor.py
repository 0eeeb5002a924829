"""Sample the whole machine once a second: processors, disk, GPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from iobench.host import machine_info
from iobench.host.device.nvml import Gpu

EVERY_S = 1.0


@dataclass(frozen=True)
class Snapshot:
    """State of the machine over the last second."""

    time: float  # seconds since 1970
    cores: list[float]  # busy share of each core, 0 to 1
    iowait: float  # share of all processors' time
    disk_bytes_per_s: float | None  # None, as the next, if the data is not on a disk
    disk_queue: float | None  # mean number of requests in flight
    gpu: float | None  # busy share, 0 to 1; None, as the next, without a GPU
    gpu_memory_bytes: int | None
    gpu_power_w: float | None = None
    gpu_clock_mhz: int | None = None
    gpu_throttled: list[str] | None = None  # reasons for reduced clocks under load


class Monitor:
    """Thread that takes a snapshot once a second while `watching`."""

    def __init__(self, path: Path, device: str, every_s: float | None = None) -> None:
        self._path, self._every_s = path, every_s or EVERY_S
        self._gpu = _gpu(device)
        self._snapshots: list[Snapshot] = []
        self._done = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Take snapshots until the block ends."""
        thread = threading.Thread(target=self._watch, name="iobench-monitor", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join()
            self._gpu.close()

    def take(self) -> list[dict[str, Any]]:
        """Return the snapshots since the last call."""
        taken, self._snapshots = self._snapshots, []
        return [asdict(snapshot) for snapshot in taken]

    def _watch(self) -> None:
        before = _MonitorCounters.now(self._path)
        while not self._done.wait(self._every_s):
            now = _MonitorCounters.now(self._path)
            self._snapshots.append(self._snapshot(before, now))
            before = now

    def _snapshot(self, before: _MonitorCounters, now: _MonitorCounters) -> Snapshot:
        elapsed = now.clock - before.clock
        spent = [_spent(a, b) for a, b in zip(before.cores, now.cores, strict=True)]
        disk = queue = None
        if before.disk is not None and now.disk is not None:
            disk = (now.disk.read_bytes - before.disk.read_bytes) / elapsed
            queue = (now.disk.queued_ms - before.disk.queued_ms) / 1000 / elapsed
        gpu = self._gpu.snapshot()
        return Snapshot(
            time=time.time(),
            cores=[round(busy, 3) for busy, _ in spent],
            iowait=sum(waiting for _, waiting in spent) / len(spent),
            disk_bytes_per_s=disk,
            disk_queue=queue,
            gpu=gpu.busy,
            gpu_memory_bytes=gpu.memory_bytes,
            gpu_power_w=gpu.power_w,
            gpu_clock_mhz=gpu.clock_mhz,
            gpu_throttled=gpu.throttled,
        )


@dataclass(frozen=True)
class _MonitorCounters:
    clock: float
    cores: list[Any]
    disk: machine_info.DiskCounters | None

    @classmethod
    def now(cls, path: Path) -> _MonitorCounters:
        return cls(time.perf_counter(), psutil.cpu_times(percpu=True), machine_info.disk_counters(path))


def _spent(before: Any, now: Any) -> tuple[float, float]:
    """Return the shares of a core's time in which it was busy and in which it waited for a disk."""
    spent = {name: getattr(now, name) - getattr(before, name) for name in now._fields}
    waiting, idle = spent.get("iowait", 0.0), spent["idle"]
    total = sum(value for name, value in spent.items() if not name.startswith("guest")) or 1.0  # in user
    return max(0.0, 1 - (idle + waiting) / total), max(0.0, waiting / total)


def _gpu(device: str) -> Gpu:
    """Return the GPU of a run; one without answers if there is none or NVML is missing."""
    if device == "cpu":
        return Gpu()
    import torch

    from iobench.host.device import device_of

    return Gpu.of(device_of(torch.device(device)).uuid)
