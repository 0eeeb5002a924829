"""Thread that takes samples at intervals while something else is measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Sample = Callable[[], float]  # takes a sample and returns the seconds until the next one

STILL_S = 1.0  # lateness of a sample above which this process may have been suspended,
STILL_CPU = 0.1  # unless it used this share of that time: then a library held the interpreter's lock


class Sampler:
    """Thread that takes samples between `start` and `stop`.

    Parameters
    ----------
    *samples : callable
        Each takes a sample and returns the seconds until it is called again.
    first_s : float
        Seconds until the first call of each.
    """

    def __init__(self, *samples: Sample, first_s: float) -> None:
        self._samples, self._first_s = samples, first_s
        self._wake, self._done = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="iobench-sampler", daemon=True)
        self.suspended_s = 0.0  # in which this process did not run

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after the sample that it is taking."""
        self._done = True
        self._wake.set()
        self._thread.join()

    def wake(self) -> None:
        """Have all samples taken now."""
        self._wake.set()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Take samples until the block ends."""
        self.start()
        try:
            yield
        finally:
            self.stop()

    def _run(self) -> None:
        due = dict.fromkeys(self._samples, time.monotonic() + self._first_s)
        while self._wait(min(due.values())):
            now, woken = time.monotonic(), self._wake.is_set()
            self._wake.clear()
            for sample in [sample for sample, at in due.items() if woken or at <= now]:
                pause_s = sample()
                due[sample] = time.monotonic() + pause_s

    def _wait(self, until: float) -> bool:
        """Wait until then, or until woken; return False at the end."""
        used_s = time.process_time()
        self._wake.wait(max(0.0, until - time.monotonic()))
        late_s = time.monotonic() - until
        if late_s > STILL_S and time.process_time() - used_s < STILL_CPU * late_s:
            self.suspended_s += late_s
        return not self._done
