"""How fast a processor runs Python right now, which heat and neighbours behind a hypervisor change."""

from __future__ import annotations

import statistics
import time

SECONDS = 0.003  # for a look
EVERY_S = 0.05  # between looks, at least
WORK = 2000  # steps of a piece: about a tenth of a millisecond


class CpuSpeedProbe:
    """How fast processors run while something else is measured: looks in its pauses."""

    def __init__(self) -> None:
        self.used_s = 0.0  # seconds of this thread's processor that `sample` took
        self._samples = [cpu_speed()]
        self._sampled_at = time.perf_counter()

    def sample(self) -> None:
        """Look again, unless it was a moment ago."""
        if time.perf_counter() - self._sampled_at >= EVERY_S:
            began = time.thread_time()
            self._samples.append(cpu_speed())
            self.used_s += time.thread_time() - began
            self._sampled_at = time.perf_counter()

    def stop(self) -> float:
        """The mean of all looks and a last one, as `cpu_speed`."""
        return statistics.fmean([*self._samples, cpu_speed()])


def cpu_speed() -> float:
    """Pieces of the same plain Python work per second of this thread; the median over a moment.

    On a virtual machine two threads may share a core without the kernel knowing of it: one runs at 0.6
    of its speed then, and neither steal nor other processes of this machine tell.
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
