"""How fast a processor runs Python right now, which heat and neighbours behind a hypervisor change."""

from __future__ import annotations

import statistics
import time

SECONDS = 0.003  # for a look
WORK = 2000  # steps of a piece: about a tenth of a millisecond


def pace() -> float:
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
