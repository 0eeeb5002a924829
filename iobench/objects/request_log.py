"""Count of the requests that this process and its workers have sent to object stores."""

from __future__ import annotations

import hashlib
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

_NONE = -1.0  # seconds of a note that is not of an answer
_SUMMED = ("retries", "throttles", "fetched_bytes", "needed_bytes", "cached_bytes", "rejected_pieces")
_COLUMNS = ("seconds", "object", "start", "row_bytes", *_SUMMED)
_NOTE = np.dtype([(name, "f8") for name in _COLUMNS])


@dataclass(frozen=True)
class RequestSummary:
    """Requests of an interval.

    `retries` are those that were sent again, `throttles` those of them that the store refused for their rate;
    `fetched_bytes` came in answers, `refetched_bytes` of these in each epoch again. The quantiles, None if
    there were none, and the sum `total_s` are of the seconds from a request to the last byte of its answer,
    of those that succeeded. With an object cache, `needed_bytes` were read through it, `cached_bytes` of
    these took no request, and `rejected_pieces` could not be written to its disk.
    """

    count: int
    p50_s: float | None
    p99_s: float | None
    retries: int = 0
    throttles: int = 0
    fetched_bytes: int = 0
    refetched_bytes: int = 0
    needed_bytes: int = 0
    cached_bytes: int = 0
    rejected_pieces: int = 0
    total_s: float = 0.0


@dataclass(frozen=True)
class WorkerLog:
    """File where the workers of a process note their requests; picklable."""

    path: Path
    owner: int  # id of the process


class RequestLog:
    """Requests since `clear`, one note for each event; safe from several threads.

    Before it, and after a block of `counting`, nothing is noted: a training of weeks sends many requests.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin with no requests and a new lock."""
        self._lock = threading.Lock()
        self._file: int | None = None  # of a worker
        self._notes: array[float] | None = None

    def clear(self) -> None:
        """Forget all requests, and note those from now on."""
        with self._lock:
            self._notes = array("d")

    @contextmanager
    def counting(self) -> Iterator[WorkerLog]:
        """Note requests within the block; yield a log for workers, which `take` reads, removed at its end."""
        self.clear()
        try:
            with tempfile.NamedTemporaryFile(prefix="iobench-requests-") as file:
                yield WorkerLog(Path(file.name), os.getpid())
        finally:
            with self._lock:
                self._notes = None

    def join(self, log: WorkerLog) -> None:
        """From now on note requests there, if this process is a worker of the one that made it."""
        if log.owner != os.getpid():
            with self._lock:
                if self._file is not None:
                    os.close(self._file)
                self._file = os.open(log.path, os.O_WRONLY | os.O_APPEND)

    def succeeded(self, seconds: float, address: str, start: int, count: int) -> None:
        """Note an answer: `count` bytes of the object at an address, from `start` on."""
        self._note(seconds=seconds, object=_number(address), start=start, fetched_bytes=count)

    def retried(self, throttled: bool) -> None:
        """Note a request that failed and is sent again; `throttled` if the store refused it for its rate."""
        self._note(retries=1, throttles=throttled)

    def read(self, row_bytes: int) -> None:
        """Note so many bytes of rows that an answer brought."""
        self._note(row_bytes=row_bytes)

    def looked_up(self, needed: int, cached: int) -> None:
        """Note a read through an object cache, of which so many bytes took no request."""
        self._note(needed_bytes=needed, cached_bytes=cached)

    def rejected(self, pieces: int) -> None:
        """Note pieces that the disk of an object cache did not take."""
        self._note(rejected_pieces=pieces)

    def take(
        self, workers: WorkerLog | None = None, epochs: int = 1, delivered: int | None = None
    ) -> RequestSummary | None:
        """Return the requests of so many epochs since `clear`, and those of workers; None if nothing counted.

        Rows that came without a request or a cache are those of another library's client.

        `delivered` are the bytes that came of an epoch that was cut off. Of its requests, those for rows that
        were read ahead and never came are left out, in proportion.
        """
        with self._lock:
            numbers = np.array(self._notes or ())
        if workers is not None:
            numbers = np.concatenate((numbers, np.fromfile(workers.path)))
        notes = numbers.view(_NOTE)
        answers = notes[notes["seconds"] != _NONE]
        seconds = np.sort(answers["seconds"])
        sums = {name: int(notes[name].sum()) for name in _SUMMED}
        sums["count"] = len(answers) + sums["retries"]
        if not any(sums.values()):
            return None
        sums["refetched_bytes"] = _refetched_bytes(answers, epochs)
        read = notes["row_bytes"].sum()
        share = 1.0 if delivered is None or read <= delivered else float(delivered / read)
        return RequestSummary(
            p50_s=_quantile(seconds, 0.5),
            p99_s=_quantile(seconds, 0.99),
            total_s=float(seconds.sum()),
            **{name: round(share * number) for name, number in sums.items()},
        )

    def _note(self, seconds: float = _NONE, **counts: float) -> None:
        note = (seconds, *(counts.get(name, 0) for name in _COLUMNS[1:]))
        with self._lock:
            if self._file is not None:
                os.write(self._file, array("d", note))  # at once: notes of several processes do not mix
            elif self._notes is not None:
                self._notes.extend(note)


def _number(address: str) -> int:
    """Return a number for an object, the same in every process, that a float holds exactly."""
    return int.from_bytes(hashlib.blake2b(address.encode(), digest_size=6).digest(), "little")


def _refetched_bytes(answers: npt.NDArray[np.void], epochs: int) -> int:
    """Return how many bytes came more often than once per epoch."""
    objects = np.tile(answers["object"], 2)
    places = np.concatenate((answers["start"], answers["start"] + answers["fetched_bytes"]))
    ends = np.repeat((1, -1), len(answers))
    ordered = np.lexsort((places, objects))
    times = np.cumsum(ends[ordered])[:-1]  # the bytes up to the next place came; none between objects
    return int((np.maximum(times - epochs, 0) * np.diff(places[ordered])).sum())


def _quantile(ordered: Seconds, share: float) -> float | None:
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))]) if len(ordered) else None


LOG = RequestLog()
os.register_at_fork(after_in_child=LOG.reset)  # a thread that is not in the child may hold the lock
