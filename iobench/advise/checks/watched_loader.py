"""Timing of any loop over a loader from inside: waits and steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np

from iobench.advise.checks.loader_info import inspect_loader
from iobench.advise.checks.loop_replay import LoopReplay
from iobench.advise.checks.loop_stats import LoopStats
from iobench.advise.checks.loop_tables import loops_table
from iobench.advise.checks.process_monitor import ProcessMonitor
from iobench.advise.diagnosis import diagnose
from iobench.base.errors import InvalidSettings
from iobench.bench.device_clock import DeviceClock
from iobench.host.collector import CollectorTime
from iobench.host.device import Device, device_of, pick_device
from iobench.loading.inspection import batch_tensors, length_of, samples_in
from iobench.results import history
from iobench.results.display import Block, Displayed
from iobench.results.record_json import plain

T = TypeVar("T")

MANY_TENSORS = 16  # in a batch, from which on only some batches are counted
COUNT_EVERY = 32
LOW = 0.5  # utilisation of a GPU below which it is low
SETTLE_S = 2.0  # for a device to finish when the loop has ended


class WatchedLoader(Displayed, Generic[T]):
    """A loader whose loops are timed; it yields the same objects and has the same attributes.

    Waits are the device's: a host that only submits work is ahead of it and waits for batches meanwhile.

    Parameters
    ----------
    loader : iterable
        Any loader.
    device : str
        Device of the loop, such as ``cuda:0`` or ``cpu``.
    on_end : callable
        Is given the LoopStats after each loop, however it ends.
    headroom : int
        Batches to append to each loop: the first ones again, already on the device.

    Attributes
    ----------
    loops : list of LoopStats
        Measurements of each loop, in order.

    Raises
    ------
    InvalidSettings
        `headroom` is negative (``out-of-range``).
    """

    def __init__(
        self, loader: Iterable[T], device: str, on_end: Callable[[LoopStats], None], headroom: int = 0
    ) -> None:
        if headroom < 0:
            raise InvalidSettings(
                "headroom", kind="out-of-range", expected="a number of batches, 0 or more", found=headroom
            )
        self._loader, self._device, self._on_end, self._headroom = loader, device, on_end, headroom
        self.loops: list[LoopStats] = []

    @property
    def stats(self) -> LoopStats | None:
        """Measurements of the last loop."""
        return self.loops[-1] if self.loops else None

    def __iter__(self) -> Iterator[T]:
        device = device_of(pick_device(self._device))
        processes = ProcessMonitor(str(device))
        loop = _Loop(device, processes.steady, inspect_loader(self._loader).workers or 1)
        replay, collector = LoopReplay[T](device, self._headroom), CollectorTime()
        try:
            with processes.active(), collector:
                yield from loop.over(replay.holding(self._loader))
            yield from replay
        finally:
            stats, gc_s = loop.stats(self._loader, processes), collector.ns / 1e9
            self.loops.append(replace(stats, replay_step_s=replay.step_s, gc_s=gc_s))
            self._on_end(self.loops[-1])

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def blocks(self) -> Iterator[Block]:
        """Yield the diagnosis of the last loop, and a table of all loops."""
        if self.loops:
            yield from diagnose(self.loops[-1]).blocks()
        else:
            yield Block("answer", ["No loop yet"])
        if len(self.loops) > 1:
            yield Block("table", columns=loops_table(self.loops))

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each loop."""
        loops = enumerate(self.loops, 1)
        return [{"loop": number, **history.flattened(plain(loop))} for number, loop in loops]


class _Loop:
    """Times of one loop; it is steady once it has as many batches as there are workers."""

    def __init__(self, device: Device, on_steady: Callable[[], None], workers: int) -> None:
        self._device, self._clock = device, DeviceClock(device)
        self._on_steady, self._steady_at = on_steady, workers
        self._batches = self._samples = self._bytes = self._tensors = 0
        self._last = (0, 0)
        self._began, self._elapsed_s = time.perf_counter(), 0.0

    def over(self, loader: Iterable[T]) -> Iterator[T]:
        """Yield the same items, timed."""
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
            self._on_steady()
        if self._tensors < MANY_TENSORS or self._batches % COUNT_EVERY == 0:
            tensors = batch_tensors(batch)
            self._tensors = len(tensors)
            self._last = (samples_in(tensors), sum(tensor.nbytes for tensor in tensors))
        self._samples += self._last[0]
        self._bytes += self._last[1]

    def stats(self, loader: Any, processes: ProcessMonitor) -> LoopStats:
        """Return the measurements of the loop."""
        self._clock.settle(SETTLE_S)
        waits, steps = self._clock.waits, self._clock.steps
        rest = np.asarray(waits.seconds[1:] or [0.0])
        machine = processes.machine
        gpu = [one.gpu for one in machine if one.gpu is not None]
        return LoopStats(
            loader=inspect_loader(loader),
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
            iowait=float(np.mean([one.iowait for one in machine])) if machine else None,
            disk_bytes=processes.disk_bytes,
            gpu=float(np.mean(gpu)) if gpu else None,
            gpu_low=float(np.mean([busy < LOW for busy in gpu])) if gpu else None,
            memory_bytes=processes.memory_bytes,
            memory_growth_bytes=processes.memory_growth_bytes,
            background=processes.background,
            epoch_batches=length_of(loader),
            worker_threads=processes.worker_threads,
        )
