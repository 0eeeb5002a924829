"""Sampling of this process and its children: memory, CPU time and disk bytes.

Memory that workers copy by reading it grows from batch to batch. Each worker's private memory is therefore
compared with its size when the loop had just become steady; memory for starting and for the first batches
does not count.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path

import psutil

from iobench.base.background_load import BackgroundLoad
from iobench.base.snapshot import Snapshot
from iobench.host import process_counters
from iobench.host.background_load import BackgroundLoadMonitor
from iobench.host.monitor import Monitor
from iobench.host.process_counters import descendants
from iobench.host.sampler import Sampler

FIRST_S, MOST_S = 0.1, 4.0  # between two samples
SPACING = 0.15  # of the time so far, so that the last sample of workers is shortly before they end
COST = 20  # pause after a sample, in times its own duration


class ProcessMonitor:
    """Resources used by this process and its workers while `active`."""

    def __init__(self, device: str) -> None:
        self._monitor = Monitor(Path.cwd(), device)
        self._background_load, self.background = BackgroundLoadMonitor(Path.cwd()), BackgroundLoad()
        self._cpu: dict[int, float] = {}
        self._disk: dict[int, int] = {}
        self._before: dict[int, tuple[float, int]] = {}  # of children that existed already
        self.worker_threads = 0  # the most of any child
        self._memory: list[tuple[int, int]] = []  # children, and bytes of all processes
        self._own: dict[int, list[int]] = {}  # of each child once the loop is steady: first and latest sample
        self._steady = False
        self.machine: list[Snapshot] = []  # none if an interrupt cut the end of the block short
        self._sampler = Sampler(self._sample_paced, self._monitor.sample, first_s=FIRST_S)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Sample until the block ends."""
        self._began_cpu, self._began_disk = time.process_time(), process_counters.disk_bytes()
        self._began_reaped, self._began = process_counters.reaped_cpu_s(), time.monotonic()
        self._ended_cpu, self._ended_disk = self._began_cpu, self._began_disk
        self._ended_reaped = self._began_reaped
        self._background_load.start()
        self._note_usage(_children())
        self._before = {child: (used, self._disk.get(child, 0)) for child, used in self._cpu.items()}
        self._sampler.start()
        try:
            yield
        finally:
            self.background = self._background_load.stop()
            self._sampler.stop()
            self._monitor.close()
            self.sample()
            self._ended_cpu, self._ended_disk = time.process_time(), process_counters.disk_bytes()
            self._ended_reaped = process_counters.reaped_cpu_s()
            self.machine = self._monitor.take()

    def steady(self) -> None:
        """Compare memory from now on: each worker has delivered a batch."""
        self._steady = True
        self._sampler.wake()

    @property
    def cpu_s(self) -> float:
        """CPU seconds of this process."""
        return self._ended_cpu - self._began_cpu

    @property
    def worker_cpu_s(self) -> float:
        """CPU seconds of its children, from the samples and from those that have ended."""
        seen = sum(used - self._before.get(child, (0.0, 0))[0] for child, used in self._cpu.items())
        gone = sum(used for child, (used, _) in self._before.items() if not psutil.pid_exists(child))
        return max(seen, self._ended_reaped - self._began_reaped - gone)

    @property
    def workers(self) -> int:
        """Most children at one time."""
        return max((children for children, _ in self._memory), default=0)

    @property
    def disk_bytes(self) -> int | None:
        """Bytes that all of them read from disk; None if the kernel does not report it."""
        if self._ended_disk is None or self._began_disk is None:
            return None
        workers = sum(read - self._before.get(child, (0.0, 0))[1] for child, read in self._disk.items())
        return max(self._ended_disk - self._began_disk, 0) + workers

    @property
    def memory_bytes(self) -> int | None:
        """Peak memory of all of them together; None if the kernel does not report it."""
        return max((count for _, count in self._memory), default=None)

    @property
    def memory_growth_bytes(self) -> int | None:
        """Growth of the children's private memory since the loop was steady; None before two samples."""
        twice = [own for own in self._own.values() if len(own) > 1]
        return sum(now - first for first, now in twice) if twice else None

    def _sample_paced(self) -> float:
        """Take a sample; return the seconds until the next one."""
        began = time.monotonic()
        self.sample()
        now = time.monotonic()
        return min(max(FIRST_S, SPACING * (now - self._began), COST * (now - began)), MOST_S)

    def sample(self) -> None:
        """Note usage and memory of the child processes."""
        children = _children()
        self._note_usage(children)
        memory = process_counters.private_memory(children)
        if (everything := process_counters.memory_bytes(memory.values())) is not None:
            self._memory.append((len(children), everything))
        for child, one in memory.items() if self._steady else ():
            own = self._own.setdefault(child, [])
            own[min(1, len(own)) :] = [one.anonymous_bytes]

    def _note_usage(self, children: Sequence[int]) -> None:
        """Note the resources that each of these has used since its start."""
        for child in children:
            try:
                process = psutil.Process(child)
                used = process.cpu_times()
                self._cpu[child] = used.user + used.system
                self.worker_threads = max(self.worker_threads, process.num_threads())
            except psutil.Error:  # it has just ended, or belongs to another user
                continue
            if (read := process_counters.disk_bytes(child)) is not None:
                self._disk[child] = read


def _children() -> list[int]:
    """Return the descendants of this process without Python's resource tracker."""
    tracker = getattr(resource_tracker, "_resource_tracker", None)
    return [child for child in descendants() if child != getattr(tracker, "_pid", None)]
