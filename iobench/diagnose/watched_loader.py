"""Any loop over a loader, timed from inside: how long it waits, and how long its step takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np

from iobench.base.errors import (
    InvalidSettings,
)
from iobench.bench.device_clock import DeviceClock
from iobench.diagnose.loader_info import inspect_loader
from iobench.diagnose.loop_replay import LoopReplay
from iobench.diagnose.loop_stats import LoopStats
from iobench.diagnose.process_monitor import ProcessMonitor
from iobench.host.device import Device, device_of, pick_device
from iobench.loading.foreign import length_of, samples_in, tensors_of

T = TypeVar("T")

MANY_TENSORS = 16  # in a batch; then only some batches are counted
COUNT_EVERY = 32
LOW = 0.5  # a GPU less busy than this is low
PATIENCE_S = 2.0  # for what a device has still to do when the loop has ended


class WatchedLoader(Generic[T]):
    """Yields what a loader yields, as it is; whatever else is asked of it, the loader answers.

    After each loop, however it ends, `seen` says what it showed, and `tell` is called with that. Waiting
    is the device's: a host that only asks it for work is ahead of it, and waits for batches meanwhile. With
    `headroom`, so many more batches come at the end: the first ones again, on the device already.
    """

    def __init__(
        self, loader: Iterable[T], device: str, tell: Callable[[LoopStats], None], headroom: int = 0
    ) -> None:
        if headroom < 0:
            raise InvalidSettings(f"headroom {headroom} is below 0: it is a number of batches")
        self._loader, self._device, self._tell, self._headroom = loader, device, tell, headroom
        self.seen: LoopStats | None = None

    def __iter__(self) -> Iterator[T]:
        device = device_of(pick_device(self._device))
        processes = ProcessMonitor(str(device))
        loop = _Loop(device, processes.steady, inspect_loader(self._loader).workers or 1)
        replay = LoopReplay[T](device, self._headroom)
        try:
            with processes.watching():
                yield from loop.over(replay.held(self._loader))
            yield from replay
        finally:
            self.seen = replace(loop.seen(self._loader, processes), replayed_s=replay.step_s)
            self._tell(self.seen)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Loop:
    """The times of one loop; it is steady once it has as many batches as there are workers."""

    def __init__(self, device: Device, steady: Callable[[], None], workers: int) -> None:
        self._device, self._clock = device, DeviceClock(device)
        self._steady, self._steady_at = steady, workers
        self._batches = self._samples = self._bytes = self._tensors = 0
        self._last = (0, 0)
        self._began, self._elapsed_s = time.perf_counter(), 0.0

    def over(self, loader: Iterable[T]) -> Iterator[T]:
        """The same items, timed."""
        self._began = time.perf_counter()
        self._clock.begin()
        try:
            for item in self._clock.over(loader):
                self._count(item)
                yield item
        finally:
            self._elapsed_s = time.perf_counter() - self._began

    def _count(self, batch: Any) -> None:
        self._batches += 1
        if self._batches == self._steady_at:
            self._steady()
        if self._tensors < MANY_TENSORS or self._batches % COUNT_EVERY == 0:
            tensors = tensors_of(batch)
            self._tensors = len(tensors)
            self._last = (samples_in(tensors), sum(tensor.nbytes for tensor in tensors))
        self._samples += self._last[0]
        self._bytes += self._last[1]

    def seen(self, loader: Any, processes: ProcessMonitor) -> LoopStats:
        """What the loop showed."""
        self._clock.settle(PATIENCE_S)
        waits, steps = self._clock.waits, self._clock.steps
        rest = np.asarray(waits.seconds[1:] or [0.0])
        machine = processes.machine
        gpu = [look["gpu"] for look in machine if look["gpu"] is not None]
        return LoopStats(
            facts=inspect_loader(loader),
            device=str(self._device),
            pins=self._device.pins,
            batches=self._batches,
            samples=self._samples,
            bytes=self._bytes,
            tensors=self._tensors,
            elapsed_s=self._elapsed_s,
            first_wait_s=waits.first_s,
            wait_s=float(rest.sum()),
            step_s=sum(steps.seconds[1:]),
            wait_p50_s=float(np.quantile(rest, 0.5)),
            wait_p99_s=float(np.quantile(rest, 0.99)),
            wait_max_s=float(rest.max()),
            cpu_s=processes.cpu_s,
            workers=processes.workers,
            worker_cpu_s=processes.worker_cpu_s,
            iowait=float(np.mean([look["iowait"] for look in machine])) if machine else None,
            disk_bytes=processes.disk_bytes,
            gpu=float(np.mean(gpu)) if gpu else None,
            gpu_low=float(np.mean([busy < LOW for busy in gpu])) if gpu else None,
            memory_bytes=processes.memory_bytes,
            memory_growth_bytes=processes.memory_growth_bytes,
            others=processes.others,
            of=length_of(loader),
            worker_threads=processes.worker_threads,
        )
