"""Looks at this process and its children now and then: memory, processor time, disk bytes."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import psutil

from iobench.host import counters
from iobench.host.monitor import Monitor
from iobench.host.others import OtherWork
from iobench.host.tree import descendants
from iobench.results.parts import OthersPart

PAUSES_S = (0.3, 1.2, 2.0, 4.0)  # and then always the last: a look takes some 10 ms


class Processes:
    """What this process and its workers used while `watching`."""

    def __init__(self, device: str) -> None:
        self._monitor = Monitor(Path.cwd(), device)
        self._other_work, self.others = OtherWork(Path.cwd()), OthersPart()
        self._cpu: dict[int, float] = {}
        self._disk: dict[int, int] = {}
        self._memory: list[tuple[int, int]] = []  # children, and bytes with them
        self._done = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Snapshot, until the block ends."""
        self._began_cpu, self._began_disk = time.process_time(), counters.disk_bytes()
        self._began_reaped = _reaped_cpu_s()
        self._other_work.start()
        thread = threading.Thread(target=self._watch, name="iobench-processes", daemon=True)
        with self._monitor.watching():
            thread.start()
            try:
                yield
            finally:
                self.others = OthersPart(**asdict(self._other_work.stop()))
                self._look()
                self._done.set()
                thread.join()
                self._ended_cpu, self._ended_disk = time.process_time(), counters.disk_bytes()
                self._ended_reaped = _reaped_cpu_s()
                self.machine = self._monitor.take()

    @property
    def cpu_s(self) -> float:
        """Of this process."""
        return self._ended_cpu - self._began_cpu

    @property
    def worker_cpu_s(self) -> float:
        """Of its children, as far as they were seen or have ended."""
        return max(sum(self._cpu.values()), self._ended_reaped - self._began_reaped)

    @property
    def workers(self) -> int:
        """The most children at once."""
        return max((children for children, _ in self._memory), default=0)

    @property
    def disk_bytes(self) -> int | None:
        """Read from disk by all of them."""
        if self._ended_disk is None or self._began_disk is None:
            return None
        return max(self._ended_disk - self._began_disk, 0) + sum(self._disk.values())

    @property
    def memory_bytes(self) -> int | None:
        """The most that all of them had together; None where the kernel does not tell."""
        return max((count for _, count in self._memory), default=None)

    def memory_growth_bytes(self, workers: int | None) -> int | None:
        """From the first look at which so many workers were there to the last one; None before two such.

        None stands for as many children as there were at most.
        """
        wanted = self.workers if workers is None else workers
        with_all = [count for children, count in self._memory if children >= wanted]
        return with_all[-1] - with_all[0] if len(with_all) > 1 else None

    def _watch(self) -> None:
        pauses = iter(PAUSES_S)
        pause = next(pauses)
        while not self._done.wait(pause):
            self._look()
            pause = next(pauses, PAUSES_S[-1])

    def _look(self) -> None:
        children = descendants()
        for child in children:
            try:
                process = psutil.Process(child)
                used = process.cpu_times()
                self._cpu[child] = used.user + used.system
                self._disk[child] = process.io_counters().read_bytes
            except psutil.Error:  # it has just ended, or is not ours to look at
                continue
        if (memory := counters.memory_bytes()) is not None:
            self._memory.append((len(children), memory))


def _reaped_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
