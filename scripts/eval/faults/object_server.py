"""The web server of the tests, with faults by seed."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from eval.faults.of_tests import module_of_tests

PASSING = ("reset", "unavailable", "short", "drip", "stall")  # a later try may succeed
MOST_IN_A_ROW = 3  # faults of one range: less than the client's tries


def object_server(folder: Path, faults: SeededFaults, stall_s: float) -> Any:
    """Return a `RangeServer` of the files of a folder; its stalls are longer than the client waits."""
    server = module_of_tests("range_server").RangeServer(folder)
    server.stall_s = stall_s
    server.fault = lambda number, name: faults.next_of(server.requests[-1])
    return server


class SeededFaults:
    """Faults of ranged requests.

    Parameters
    ----------
    share : float
        Of the requests that meet one of PASSING.
    seed : int
        Of the faults.
    lasting : str, optional
        Fault of all requests after the first `after`: "stall", or "replaced" (another version).
    """

    def __init__(self, share: float, seed: int, lasting: str | None = None, after: int = 0) -> None:
        self.injected = Counter[str]()
        self._share, self._lasting, self._left = share, lasting, after
        self._rng, self._in_a_row = random.Random(seed), Counter[object]()

    def next_of(self, request: object) -> str | None:
        """Return the fault of a request for a range, and count it."""
        self._left -= 1
        if self._lasting and self._left < 0:
            fault = self._lasting
        elif self._rng.random() < self._share and self._in_a_row[request] < MOST_IN_A_ROW:
            fault = self._rng.choice(PASSING)
            self._in_a_row[request] += fault != "drip"
        else:
            del self._in_a_row[request]
            return None
        self.injected[fault] += 1
        return fault
