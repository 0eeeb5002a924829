"""Count of the requests that this process and its workers have sent to object stores."""

from __future__ import annotations

import os
import tempfile
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]

_WIDTH = 6  # numbers of a note
_NONE = -1.0  # seconds of a note that is not of an answer


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


@dataclass(frozen=True)
class WorkerLog:
    """File where the workers of a process note their requests; picklable."""

    path: Path
    owner: int  # id of the process


class RequestLog:
    """Requests since `clear`, one note for each event; safe from several threads.

    A note is seconds, fetched bytes, retries, needed bytes, cached bytes and rejected pieces.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin with no requests and a new lock."""
        self._lock = threading.Lock()
        self._file: int | None = None  # of a worker
        self.clear()

    def clear(self) -> None:
        """Forget all requests."""
        with self._lock:
            self._notes = array("d")

    @contextmanager
    def of_workers(self) -> Iterator[WorkerLog]:
        """Yield a log for workers, which `take` reads; removed at the end of the block."""
        with tempfile.NamedTemporaryFile(prefix="iobench-requests-") as file:
            yield WorkerLog(Path(file.name), os.getpid())

    def join(self, log: WorkerLog) -> None:
        """From now on note requests there, if this process is a worker of the one that made it."""
        if log.owner != os.getpid():
            with self._lock:
                if self._file is not None:
                    os.close(self._file)
                self._file = os.open(log.path, os.O_WRONLY | os.O_APPEND)

    def succeeded(self, seconds: float, count: int) -> None:
        """Note an answer of `count` bytes."""
        self._note(seconds, count, 0, 0, 0, 0)

    def retried(self) -> None:
        """Note a request that failed and is sent again."""
        self._note(_NONE, 0, 1, 0, 0, 0)

    def looked_up(self, needed: int, cached: int) -> None:
        """Note a read through an object cache, of which so many bytes took no request."""
        self._note(_NONE, 0, 0, needed, cached, 0)

    def rejected(self, pieces: int) -> None:
        """Note pieces that the disk of an object cache did not take."""
        self._note(_NONE, 0, 0, 0, 0, pieces)

    def take(self, workers: WorkerLog | None = None) -> RequestSummary | None:
        """Return the requests since `clear`, and those of workers; None if nothing was noted."""
        with self._lock:
            notes = np.array(self._notes)
        if workers is not None:
            notes = np.concatenate((notes, np.fromfile(workers.path)))
        if not len(notes):
            return None
        table = notes.reshape(-1, _WIDTH)
        seconds = np.sort(table[table[:, 0] != _NONE, 0])
        fetched, retries, needed, cached, rejected = table[:, 1:].sum(axis=0).astype(int).tolist()
        return RequestSummary(
            count=len(seconds) + retries,
            retries=retries,
            fetched_bytes=fetched,
            p50_s=_quantile(seconds, 0.5),
            p99_s=_quantile(seconds, 0.99),
            needed_bytes=needed,
            cached_bytes=cached,
            rejected_pieces=rejected,
        )

    def _note(self, *note: float) -> None:
        with self._lock:
            if self._file is None:
                self._notes.extend(note)
            else:
                os.write(self._file, array("d", note))  # at once: notes of several processes do not mix


def _quantile(ordered: Seconds, share: float) -> float | None:
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))]) if len(ordered) else None


LOG = RequestLog()
os.register_at_fork(after_in_child=LOG.reset)  # a thread that is not in the child may hold the lock
