"""Count of the requests that this process has sent to object stores."""

from __future__ import annotations

import os
import threading
from array import array
from dataclasses import dataclass


@dataclass(frozen=True)
class RequestSummary:
    """Requests of an interval.

    `retries` are those that were sent again; `fetched_bytes` came in answers that were used; the quantiles
    are seconds from a request to the last byte of its answer, of those that succeeded, None if there were
    none. With an object cache, `needed_bytes` were read through it, `cached_bytes` of these took no request,
    and `rejected_pieces` could not be written to its disk.
    """

    count: int
    retries: int
    fetched_bytes: int
    p50_s: float | None
    p99_s: float | None
    needed_bytes: int
    cached_bytes: int
    rejected_pieces: int


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
            self._needed = self._cached = self._rejected = 0

    def succeeded(self, seconds: float, count: int) -> None:
        """Note an answer of `count` bytes."""
        with self._lock:
            self._seconds.append(seconds)
            self._bytes += count

    def retried(self) -> None:
        """Note a request that failed and is sent again."""
        with self._lock:
            self._retries += 1

    def looked_up(self, needed: int, cached: int) -> None:
        """Note a read through an object cache, of which so many bytes took no request."""
        with self._lock:
            self._needed += needed
            self._cached += cached

    def rejected(self, pieces: int) -> None:
        """Note pieces that the disk of an object cache did not take."""
        with self._lock:
            self._rejected += pieces

    def take(self) -> RequestSummary | None:
        """Return the requests since `clear`; None if there were none, and no read through a cache."""
        with self._lock:
            if not self._seconds and not self._needed:
                return None
            p50, p99 = self._quantiles(0.5, 0.99)
            return RequestSummary(
                count=len(self._seconds) + self._retries,
                retries=self._retries,
                fetched_bytes=self._bytes,
                p50_s=p50,
                p99_s=p99,
                needed_bytes=self._needed,
                cached_bytes=self._cached,
                rejected_pieces=self._rejected,
            )

    def _quantiles(self, *shares: float) -> list[float | None]:
        seconds = sorted(self._seconds)
        last = len(seconds) - 1
        return [seconds[min(last, int(share * len(seconds)))] if seconds else None for share in shares]


LOG = RequestLog()
os.register_at_fork(after_in_child=LOG.reset)  # a thread that is not in the child may hold the lock
