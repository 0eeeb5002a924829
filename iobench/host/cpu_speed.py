"""Current speed of the processor, which changes with heat and with other virtual machines on the host."""

from __future__ import annotations

import statistics
import time

SECONDS = 0.003  # of one sample
EVERY_S = 0.05  # minimum time between samples
WORK = 2000  # steps of one piece of work: about 0.1 ms


class CpuSpeedProbe:
    """Samples the speed of the processor in the pauses of another measurement."""

    def __init__(self) -> None:
        self.used_s = 0.0  # processor seconds spent in `sample`
        self._samples = [cpu_speed()]
        self._sampled_at = time.perf_counter()

    def sample(self) -> None:
        """Take a sample, unless the last one is less than EVERY_S old."""
        if time.perf_counter() - self._sampled_at >= EVERY_S:
            began = time.thread_time()
            self._samples.append(cpu_speed())
            self.used_s += time.thread_time() - began
            self._sampled_at = time.perf_counter()

    def stop(self) -> float:
        """Take a last sample and return the mean of all, in the unit of `cpu_speed`."""
        return statistics.fmean([*self._samples, cpu_speed()])


def cpu_speed() -> float:
    """Measure pieces of plain Python work per second in this thread; the median over SECONDS.

    On a virtual machine two threads may share a core without the kernel's knowledge. Each then runs at 0.6
    of its speed, which neither steal time nor the load of other processes shows.
    """
    taken, began = list[float](), time.perf_counter()
    while not taken or time.perf_counter() - began < SECONDS:
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
