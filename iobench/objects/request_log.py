"""Count of the requests that this process has sent to object stores."""

from __future__ import annotations

import os
import threading
from array import array
from dataclasses import dataclass


@dataclass(frozen=True)
class RequestSummary:
    """Requests of an interval.

    `retries` are those that were sent again; `bytes` came in answers that were used; the quantiles are
    seconds from a request to the last byte of its answer, of those that succeeded.
    """

    count: int
    retries: int
    bytes: int
    p50_s: float
    p99_s: float


class RequestLog:
    """Seconds, bytes and retries of requests since `clear`; safe from several threads."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin with no requests and a new lock."""
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forget all requests."""
        with self._lock:
            self._seconds, self._bytes, self._retries = array("d"), 0, 0

    def succeeded(self, seconds: float, count: int) -> None:
        """Note an answer of `count` bytes."""
        with self._lock:
            self._seconds.append(seconds)
            self._bytes += count

    def retried(self) -> None:
        """Note a request that failed and is sent again."""
        with self._lock:
            self._retries += 1

    def take(self) -> RequestSummary | None:
        """Return the requests since `clear`; None if there were none."""
        with self._lock:
            seconds = sorted(self._seconds)
            if not seconds:
                return None
            count = len(seconds)
            p50, p99 = (seconds[min(count - 1, int(share * count))] for share in (0.5, 0.99))
            return RequestSummary(count + self._retries, self._retries, self._bytes, p50, p99)


LOG = RequestLog()
os.register_at_fork(after_in_child=LOG.reset)  # a thread that is not in the child may hold the lock
