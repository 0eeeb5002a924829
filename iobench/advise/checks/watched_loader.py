"""A loader in a loop that is watched: its waits, its processes, and its first batches."""

from __future__ import annotations

import copy
import itertools
import threading
import time
import types
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import psutil

from iobench.advise.checks.evidence import Evidence
from iobench.advise.checks.loop_stats import (
    ACCELERATED,
    LoopReplay,
    LoopStats,
    OtherRanks,
    inspect_loader,
    number_of_ranks,
)
from iobench.advise.checks.profiling import activity_of
from iobench.advise.diagnosis import diagnose, loops_table
from iobench.base.errors import InvalidSettings
from iobench.base.machine import BackgroundLoad, Snapshot
from iobench.bench.meter import DeviceClock
from iobench.host import process_counters
from iobench.host.device import Device, device_of, pick_device
from iobench.host.machine_load import BackgroundLoadMonitor, CollectorTime, Monitor, Sampler
from iobench.host.memory import shared_memory
from iobench.host.process_counters import descendants
from iobench.loading.inspection import batch_tensors, is_dataloader, length_of, samples_in
from iobench.results import history
from iobench.results.display import Block, Chart, Displayed, Row
from iobench.results.record_file import plain

FIRST_S, MOST_S = 0.1, 4.0  # between two samples
ACTIVITY_S, ACTIVITY = 0.02, 0.01  # between two samples of the stack, at least; of the time so far
HELD = 5  # times that, from which on the loop's thread held the interpreter's lock since the last sample
SPACING = 0.15  # of the time so far, so that the last sample of workers is shortly before they end
COST = 20  # pause after a sample, in times its own duration


class ProcessMonitor:
    """Resources used by this process and its workers while `active`."""

    def __init__(self, device: str) -> None:
        self._monitor = Monitor(Path.cwd(), device)
        self._open_files = self._shared_bytes = 0  # growth at its peak: of one process, and of /dev/shm
        self._background_load, self._background = BackgroundLoadMonitor(Path.cwd()), BackgroundLoad()
        self._cpu: dict[int, float] = {}
        self._disk: dict[int, int] = {}
        self._before: dict[int, tuple[float, int]] = {}  # of children that existed already
        self._worker_threads = 0  # the most of any child
        self._memory: list[tuple[int, int]] = []  # children, and bytes of all processes
        self._own: dict[int, list[int]] = {}  # of each child once the loop is steady: first and latest sample
        self._steady = False
        self._activities_s = defaultdict[str, float](float)  # of the loop's thread, by what samples found
        self._machine: list[Snapshot] = []  # none if an interrupt cut the end of the block short
        samples = self._sample_paced, self._monitor.sample, self._note_activity
        self._sampler = Sampler(*samples, first_s=FIRST_S)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Sample until the block ends."""
        self._began = self._ended = _used()
        self._began_at = self._seen = time.monotonic()
        self._activity: str | None = None  # in the last sample
        self._thread = threading.get_ident()
        self._began_files, (self._began_shared, _) = psutil.Process().num_fds(), shared_memory()
        self._background_load.start()
        self._note_usage(_children())
        self._before = {child: (used, self._disk.get(child, 0)) for child, used in self._cpu.items()}
        self._sampler.start()
        try:
            yield
        finally:
            self._background = self._background_load.stop()
            self._sampler.stop()
            self._monitor.close()
            self.sample()
            self._ended = _used()
            self._machine = self._monitor.take()

    def steady(self) -> None:
        """Compare memory from now on: each worker has delivered a batch."""
        self._steady = True
        self._sampler.wake()

    def figures(self) -> dict[str, Any]:
        """Return what they used, by the names of LoopStats; None where the kernel does not report it."""
        began_cpu_s, began_reaped_s, began_disk = self._began
        cpu_s, reaped_s, disk = self._ended
        seen_s = sum(used - self._before.get(child, (0.0, 0))[0] for child, used in self._cpu.items())
        gone_s = sum(used for child, (used, _) in self._before.items() if not psutil.pid_exists(child))
        read = sum(count - self._before.get(child, (0.0, 0))[1] for child, count in self._disk.items())
        twice = [own for own in self._own.values() if len(own) > 1]
        gpu = [one.gpu for one in self._machine if one.gpu is not None]
        return {
            "cpu_s": cpu_s - began_cpu_s,
            "workers": max((children for children, _ in self._memory), default=0),
            "worker_cpu_s": max(seen_s, reaped_s - began_reaped_s - gone_s),
            "sampler_s": self._activities_s["sampler"],
            "pickling_s": self._activities_s["pickling"],
            "iowait": float(np.mean([one.iowait for one in self._machine])) if self._machine else None,
            "disk_bytes": None if disk is None or began_disk is None else max(disk - began_disk, 0) + read,
            "gpu": float(np.mean(gpu)) if gpu else None,
            "gpu_low": float(np.mean([busy < LOW for busy in gpu])) if gpu else None,
            "memory_bytes": max((count for _, count in self._memory), default=None),
            "memory_growth_bytes": sum(now - first for first, now in twice) if twice else None,
            "background": self._background,
            "worker_threads": self._worker_threads,
            "open_files": self._open_files,
            "shared_bytes": self._shared_bytes,
        }

    def _sample_paced(self) -> float:
        began = time.monotonic()
        self.sample()
        now = time.monotonic()
        return min(max(FIRST_S, SPACING * (now - self._began_at), COST * (now - began)), MOST_S)

    def _note_activity(self) -> float:
        """Note what the loop's thread does; the time since the last sample counts as this.

        A thread that held the interpreter's lock, as `tolist` of a large tensor does, did what it had begun.
        """
        now, activity = time.monotonic(), activity_of(self._thread)
        since_s, began = now - self._seen, self._activity
        self._seen, self._activity = now, activity
        pause_s = max(ACTIVITY_S, ACTIVITY * (now - self._began_at))
        if (counted := activity or (began if since_s > HELD * pause_s else None)) is not None:
            self._activities_s[counted] += since_s
        return pause_s

    def sample(self) -> None:
        """Note usage and memory of the child processes."""
        children = _children()
        self._note_usage(children)
        self._shared_bytes = max(self._shared_bytes, shared_memory()[0] - self._began_shared)
        for process in {None, *children} - self._before.keys():
            with suppress(psutil.Error):  # it has just ended
                held = psutil.Process(process).num_fds() - self._began_files
                self._open_files = max(self._open_files, held)
        memory = process_counters.private_memory(children)
        if (everything := process_counters.memory_bytes(memory.values())) is not None:
            self._memory.append((len(children), everything))
        for child, one in memory.items() if self._steady else ():
            own = self._own.setdefault(child, [])
            own[min(1, len(own)) :] = [one.anonymous_bytes]

    def _note_usage(self, children: Sequence[int]) -> None:
        for child in children:
            with suppress(psutil.Error):  # it has just ended, or belongs to another user
                process = psutil.Process(child)
                used = process.cpu_times()
                self._cpu[child] = used.user + used.system
                self._worker_threads = max(self._worker_threads, process.num_threads())
                self._disk[child] = process_counters.disk_bytes(child) or self._disk.get(child, 0)


def _used() -> tuple[float, float, int | None]:
    """Return the CPU seconds of this process and of children that have ended, and the bytes that it read."""
    return time.process_time(), process_counters.reaped_cpu_s(), process_counters.disk_bytes()


def _children() -> list[int]:
    """Return the descendants of this process without Python's resource tracker."""
    tracker = getattr(resource_tracker, "_resource_tracker", None)
    return [child for child in descendants() if child != getattr(tracker, "_pid", None)]


T = TypeVar("T")

MANY_TENSORS = 16  # in a batch, from which on only some batches are counted
COUNTED, COUNT_EVERY = 256, 32  # the first ones, and then some, as well as the last
LOW = 0.5  # utilisation of a GPU below which it is low
SETTLE_S = 2.0  # for a device to finish when the loop has ended
_numbers = itertools.count()  # of the loaders that this process watches
_FIGURES = ("loops", "stats", "blocks", "rows", "to_pandas", "plot", "_repr_html_")  # of a watch


class WatchedLoader(Displayed, Generic[T]):
    """A loader whose loops are timed; it yields the same objects and has the same attributes.

    Waits are those of the `device`, such as ``cuda:0`` or ``cpu``: a host that only submits work is ahead of
    it and waits for batches meanwhile. After each loop, however it ends, its LoopStats are appended to
    `loops` and given to `on_end`. `headroom` is a number of batches to append to each loop: the first ones
    again, already on the device.

    InvalidSettings if `headroom` is negative (``out-of-range``).
    """

    def __init__(
        self, loader: Iterable[T], device: str, on_end: Callable[[LoopStats], None], headroom: int = 0
    ) -> None:
        if headroom < 0:
            expected = "a number of batches, 0 or more"
            raise InvalidSettings("headroom", kind="out-of-range", expected=expected, found=headroom)
        self._loader, self._device, self._on_end, self._headroom = loader, device, on_end, headroom
        self.loops: list[LoopStats] = []
        self._number, self._begun = next(_numbers), 0

    @property
    def stats(self) -> LoopStats | None:
        """Measurements of the last loop."""
        return self.loops[-1] if self.loops else None

    def __iter__(self) -> Iterator[T]:
        return self.over(self._loader)

    def over(self, loader: Iterable[T]) -> Iterator[T]:
        """Return a timed iterator over a loader, whose workers start now, as by the loader's own."""
        timed = self._timed(loader)
        next(timed)
        return timed

    def _timed(self, loader: Iterable[T]) -> Generator[Any, None, None]:
        """Yield None when the loader's iterator is made, then its batches."""
        device = device_of(pick_device(self._device))
        processes = ProcessMonitor(str(device))
        self._begun += 1
        name = f"{self._number}/{self._begun}"  # the same on all ranks
        loop = _Loop(name, device, processes.steady, inspect_loader(loader).workers or 1)
        replay, collector = LoopReplay[T](device, self._headroom), CollectorTime()
        begun, raised = False, ""
        try:
            with processes.active(), collector:
                items = loop.opened(loader)
                yield None
                begun = True
                yield from collector.over(loop.over(replay.holding(items) if self._headroom else items))
            yield from replay
        except Exception as error:
            raised = type(error).__name__
            raise
        finally:
            if begun:
                stats, gc_s = loop.stats(loader, processes), collector.ns / 1e9
                self.loops.append(replace(stats, replay_step_s=replay.step_s, gc_s=gc_s, raised=raised))
                self._on_end(self.loops[-1])

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # not there yet, when it is unpickled
            raise AttributeError(name)
        return getattr(self._loader, name)

    def blocks(self) -> Iterator[Block]:
        """Yield the diagnosis of the last loop, and a table of all loops."""
        if self.loops:
            yield from diagnose(Evidence(self.loops[-1])).blocks()
        else:
            yield Block("answer", ["No loop yet"])
        if len(self.loops) > 1:
            yield Block("table", columns=loops_table(self.loops))
        if rows := list(self._stages()):
            caption = "Time of each loop after its first batch: waiting for batches, and everything else."
            yield Block("chart", chart=Chart("stages", "watch", "Time of each loop", caption, rows))

    def _stages(self) -> Iterator[Row]:
        for number, loop in enumerate(self.loops, 1):
            stages = {"wait": loop.wait_s, "compute": loop.step_s}
            for place, (stage, seconds) in enumerate(stages.items()):
                if seconds:
                    share = seconds / (loop.wait_s + loop.step_s)
                    loop_row = {"key": f"{number:06}", "case": f"loop {number}", "stage": stage}
                    yield {**loop_row, "share": share, "seconds": seconds, "place": place}

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each loop."""
        loops = enumerate(self.loops, 1)
        return [{"loop": number, **history.flattened(plain(loop))} for number, loop in loops]


def watched(
    loader: Iterable[T], device: str, on_end: Callable[[LoopStats], None], headroom: int = 0
) -> WatchedLoader[T]:
    """Return a loader whose loops are timed: a DataLoader for a DataLoader, else a WatchedLoader.

    A Trainer and Accelerate shard only what is a DataLoader.
    """
    watch = WatchedLoader(loader, device, on_end, headroom)
    return stand_in(loader, watch) if is_dataloader(loader) else watch


def stand_in(loader: Any, watch: WatchedLoader[Any]) -> Any:
    """Return an object of a subclass of a loader's class that acts for it, and whose loops are timed.

    Calling that subclass makes another loader of the loader's own class, and returns its stand-in, so that a
    Trainer that makes a loader again, with another sampler, is watched.
    """
    if isinstance(loader, _StandIn):  # watched twice: by the last one
        loader = _pair(loader)[0]
    own = type(loader)

    class Again(type(own)):  # type: ignore[misc] # the class of the loader's class
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return stand_in(own(*args, **kwargs), watch)

    body = {"__slots__": ("_iobench_pair",), "__module__": own.__module__, "__qualname__": own.__qualname__}
    made = types.new_class(
        own.__name__, (_StandIn, own), {"metaclass": Again}, lambda space: space.update(body)
    )
    acting: Any = object.__new__(made)
    object.__setattr__(acting, "_iobench_pair", (loader, watch))
    return acting


def _pair(acting: Any) -> tuple[Any, WatchedLoader[Any]]:
    pair: tuple[Any, WatchedLoader[Any]] = object.__getattribute__(acting, "_iobench_pair")
    return pair


class _StandIn:
    """Acts for a loader in everything but loops; attributes that the loader lacks are the watch's."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        loader, watch = _pair(self)
        return watch.over(loader)

    def __getattribute__(self, name: str) -> Any:
        loader, watch = _pair(self)
        if name == ACCELERATED and not vars(loader).get(name):
            raise InvalidSettings(
                "iobench.watch",
                kind="watched-before-prepare",
                expected="the loader that Accelerate makes",
                found="one that Accelerate would replace by another, which is not watched",
                hint="for batch in iobench.watch(accelerator.prepare(loader))",
            )
        if name in ("__copy__", "__reduce_ex__"):
            return object.__getattribute__(self, name)
        try:
            return getattr(loader, name)
        except AttributeError:
            if name not in _FIGURES:
                raise
            return getattr(watch, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_pair(self)[0], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_pair(self)[0], name)

    def __copy__(self) -> Any:
        loader, watch = _pair(self)
        return stand_in(copy.copy(loader), watch)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return stand_in, _pair(self)

    def __del__(self) -> None:
        """Leave the loader's own end to the loader."""


class _Loop:
    """Times of one loop; it is steady once it has as many batches as there are workers."""

    def __init__(self, name: str, device: Device, on_steady: Callable[[], None], workers: int) -> None:
        self._device, self._clock = device, DeviceClock(device)
        self._on_steady, self._steady_at = on_steady, workers
        self._batches = self._samples = self._bytes = self._tensors = 0
        self._last = (0, 0)
        self._opening_s, self._elapsed_s = 0.0, 0.0
        self._ranks = number_of_ranks()
        self._same_on_ranks: bool | None = None
        self._others = OtherRanks(name, self._ranks)

    def opened(self, loader: Iterable[T]) -> Iterator[T]:
        """Return the loader's iterator; to make it is part of the first wait."""
        began, first = time.perf_counter(), self._device.mark()
        items = iter(loader)
        self._opening = first, self._device.mark()
        self._opening_s = time.perf_counter() - began
        return items

    def over(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the same items, timed."""
        began, batches, counted, item = time.perf_counter(), 0, 1, None
        self._clock.begin()
        try:
            for item in self._clock.over(items):
                batches += 1
                if batches >= counted:
                    counted = self._count(item, batches)
                yield item
        finally:
            self._count(item, batches)  # the last one may be smaller
            self._elapsed_s = time.perf_counter() - began + self._opening_s
            if self._ranks > 1:
                self._ranks, self._same_on_ranks = self._others.compare()

    def _count(self, batch: Any, number: int) -> int:
        """Count the batches up to this one, of which those not looked at are like the last; return the next.

        Those that are looked at are the first `COUNTED`, and then some.
        """
        if (more := number - self._batches) <= 0:
            return number
        if self._batches == 0 and self._ranks > 1:
            self._others.publish(batch)
        if self._batches < self._steady_at <= number:
            self._on_steady()
        tensors = batch_tensors(batch)
        size = samples_in(tensors), sum(tensor.nbytes for tensor in tensors)
        before = self._last
        self._samples += (more - 1) * before[0] + size[0]
        self._bytes += (more - 1) * before[1] + size[1]
        self._batches, self._tensors, self._last = number, len(tensors), size
        few = number < COUNTED and self._tensors < MANY_TENSORS
        return number + (1 if few or number < self._steady_at else COUNT_EVERY)

    def stats(self, loader: Any, processes: ProcessMonitor) -> LoopStats:
        """Return the measurements of the loop."""
        self._clock.settle(SETTLE_S)
        waits, steps = self._clock.waits, self._clock.steps
        first, opened = self._opening
        opening_s = opened.seconds_since(first) if opened.reached() else 0.0
        rest = np.asarray(waits.seconds[1:] or [0.0])
        stats = LoopStats(
            loader=inspect_loader(loader),
            device=str(self._device),
            pins=self._device.pins,
            batches=self._batches,
            samples=self._samples,
            bytes=self._bytes,
            tensors=self._tensors,
            elapsed_s=self._elapsed_s,
            first_wait_s=waits.first_s + opening_s,
            wait_s=float(rest.sum()),
            step_s=sum(steps.seconds[1:]),
            wait_p50_s=float(np.quantile(rest, 0.5)),
            wait_p99_s=float(np.quantile(rest, 0.99)),
            wait_max_s=float(rest.max()),
            epoch_batches=length_of(loader),
            ranks=self._ranks,
            same_on_ranks=self._same_on_ranks,
            **processes.figures(),
        )
        if self._ranks == 1:
            return stats
        return replace(stats, rank_waits=self._others.wait_shares(stats.wait_share))
