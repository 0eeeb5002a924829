"""The training process's side of a worker: requests, received batches, and replacement of dead actors."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice, tee
from typing import Any

from torch._utils import ExceptionWrapper

from iobench.base.errors import LoaderFailed
from iobench.base.text import reason
from iobench.base.units import MIB
from iobench.contrib.ray.actor import RandomState, Shipment, actor_class
from iobench.contrib.ray.packed import Copy, Packed

START_S = 120.0  # for Ray to place an actor, and for the actor to import torch
SILENT_S = 30.0  # without an answer, after which an actor counts as dead
TRANSFER_S = 120.0  # for a finished result to arrive
POLL_S = 1.0
DEATHS = 3  # in a row on one batch, after which it fails
# batches are shipped together up to one of these limits
SHIPMENT_BYTES, SHIPMENT_S, SHIPMENT_BATCHES = MIB, 0.1, 256


class BatchTimeout(Exception):
    """No batch arrived within the loader's timeout."""


class ActorSilent(Exception):
    """An actor that had started does not answer."""


@cache
def actor_errors() -> tuple[type[Exception], ...]:
    """Return the errors after which a new actor must take over."""
    from ray import exceptions as ray_errors

    lost = (ray_errors.ObjectLostError, ray_errors.OutOfMemoryError, ray_errors.GetTimeoutError)
    return (
        ActorSilent,
        ray_errors.RayActorError,
        ray_errors.WorkerCrashedError,
        ray_errors.NodeDiedError,
        *lost,
    )


@dataclass(frozen=True)
class WorkerConfig:
    """Settings that all workers of a loader share."""

    work: Any  # a reference into the object store; holding it allows dead actors to be replaced
    options: Mapping[str, Any]
    prefetch: int  # shipments requested ahead
    timeout: float
    copy: Copy  # of received batches


class RemoteWorker:
    """A worker of one number, run by one actor after another; returns batches in the requested order."""

    def __init__(self, config: WorkerConfig, number: int) -> None:
        self._config, self.number = config, number
        # indices, and the reference to their batches
        self._requests: deque[tuple[Sequence[Any], Any]] = deque()
        self._ready: deque[Packed | ExceptionWrapper] = deque()
        self._random: RandomState | None = None
        self._ping: Any = None  # a reference to an answer of the actor
        self.batches_per_shipment = 1
        self._start()

    def begin(self, indices: Iterator[Any]) -> None:
        """Begin an epoch with the indices of its batches, and request the first ones."""
        self._requests.clear()
        self._ready.clear()
        self._indices = indices
        self._request()

    def next(self) -> Any:
        """Return the next batch; StopIteration after the last.

        Raises any error of the dataset, BatchTimeout, or LoaderFailed if its actors die.
        """
        if not self._ready:
            self._receive()
        batch = self._ready.popleft()
        if isinstance(batch, ExceptionWrapper):
            batch.reraise()  # type: ignore[no-untyped-call]
            raise AssertionError("reraise() always raises")
        return batch.unpacked(self._config.copy)

    def kill(self) -> None:
        """Kill the actor."""
        import ray

        if ray.is_initialized():
            ray.kill(self._actor)

    def _start(self) -> None:
        remote = actor_class().options(**self._config.options)
        self._actor = remote.remote(self._config.work, sys.path, self.number, self._random)
        self._started, self._ping, self._pinged_s = False, None, time.monotonic()

    def _request(self) -> None:
        while len(self._requests) < self._config.prefetch:
            if not (indices := list(islice(self._indices, self.batches_per_shipment))):
                break
            self._requests.append((indices, self._actor.ship.remote(indices)))

    def _receive(self) -> None:
        if not self._requests:
            raise StopIteration
        shipment = self._shipment()
        self._requests.popleft()
        self._random = shipment.random
        self.batches_per_shipment = batches_per_shipment(shipment)
        self._ready.extend(shipment.batches)
        self._request()

    def _shipment(self) -> Shipment:
        """Return the oldest shipment, from a new actor if one dies."""
        until = time.monotonic() + self._config.timeout if self._config.timeout else float("inf")
        for _ in range(DEATHS):
            try:
                return self._outcome(self._requests[0][1], until)
            except actor_errors() as error:
                why = reason(error)
            self._replace()
        raise LoaderFailed(
            f"RayLoader worker {self.number} died {DEATHS} times on the same batch, the last time: {why}",
            kind="worker-died",
        )

    def _outcome(self, reference: Any, until: float) -> Shipment:
        """Return the result that a reference stands for; meanwhile check that the actor answers.

        BatchTimeout at the time `until`, in seconds of the monotonic clock. LoaderFailed if the actor has not
        started (`worker-not-started`). Exception of `actor_errors()` if the actor is dead.
        """
        import ray

        while not ray.wait([reference], timeout=min(POLL_S, max(0.0, until - time.monotonic())))[0]:
            if time.monotonic() >= until:
                raise BatchTimeout
            if self._ping is None:
                self._ping, self._pinged_s = self._actor.alive.remote(), time.monotonic()
            elif ray.wait([self._ping], timeout=0)[0]:
                ray.get(self._ping, timeout=TRANSFER_S)
                self._ping, self._started = None, True
            elif time.monotonic() - self._pinged_s > (SILENT_S if self._started else START_S):
                raise self._silent()
        shipment: Shipment = ray.get(reference, timeout=TRANSFER_S)
        self._started = True
        return shipment

    def _silent(self) -> Exception:
        """Return the error for an actor that does not answer."""
        if self._started:
            return ActorSilent(f"no answer for {SILENT_S:g} s")
        problem = (
            f"a RayLoader worker has not started within {START_S:g} s: Ray has no resources for it, "
            "or is still starting"
        )
        return LoaderFailed(problem, "worker-not-started", hint="use fewer workers, or look at 'ray status'")

    def _replace(self) -> None:
        """Start a new actor at the state of the last one, and request what has not arrived."""
        self.kill()
        self._start()
        repeated = [(indices, self._actor.ship.remote(indices)) for indices, _ in self._requests]
        self._requests = deque(repeated)


def round_robin(batches: Iterator[Any], workers: int) -> list[Iterator[Any]]:
    """Return the batches of each worker, assigned in turn, as torch does."""
    return [islice(own, number, None, workers) for number, own in enumerate(tee(batches, workers))]


def batches_per_shipment(shipment: Shipment) -> int:
    """Return the number of batches for the next shipment, from the size and time of the last one."""
    count = len(shipment.batches)
    by_bytes = SHIPMENT_BYTES * count / max(1, shipment.nbytes)
    by_time = SHIPMENT_S * count / max(1e-9, shipment.seconds)
    return max(1, min(int(by_bytes), int(by_time), SHIPMENT_BATCHES))
