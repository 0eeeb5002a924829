"""Waiting for an actor, which may die, stop responding or never start."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

from iobench.base.errors import LoaderFailed
from iobench.contrib.ray.actor import Shipment

START_S = 120.0  # for Ray to place an actor, and for the actor to import torch
SILENT_S = 30.0  # without an answer, after which an actor counts as dead
TRANSFER_S = 120.0  # for a finished result to arrive
POLL_S = 1.0


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


class ActorMonitor:
    """Waits for results of an actor, and checks meanwhile that the actor answers."""

    def __init__(self, actor: Any) -> None:
        self._actor, self._started = actor, False
        self._ping: Any = None
        self._since_s = time.monotonic()

    def outcome(self, reference: Any, until: float) -> Shipment:
        """Return the result that a reference stands for.

        BatchTimeout at the time `until`, in seconds of the monotonic clock. LoaderFailed if the actor has not
        started (`worker-not-started`). Exception of `actor_errors()` if the actor is dead.
        """
        import ray

        while not ray.wait([reference], timeout=min(POLL_S, max(0.0, until - time.monotonic())))[0]:
            if time.monotonic() >= until:
                raise BatchTimeout
            self._check()
        shipment: Shipment = ray.get(reference, timeout=TRANSFER_S)
        self._started = True
        return shipment

    def _check(self) -> None:
        import ray

        if self._ping is None:
            self._ping, self._since_s = self._actor.alive.remote(), time.monotonic()
        elif ray.wait([self._ping], timeout=0)[0]:
            ray.get(self._ping, timeout=TRANSFER_S)
            self._ping, self._started = None, True
        elif time.monotonic() - self._since_s > (SILENT_S if self._started else START_S):
            self._raise_dead()

    def _raise_dead(self) -> None:
        if self._started:
            raise ActorSilent(f"no answer for {SILENT_S:g} s")
        raise LoaderFailed(
            f"a RayLoader worker has not started within {START_S:g} s: Ray has no resources for it, "
            "or is still starting",
            kind="worker-not-started",
            hint="use fewer workers, or look at 'ray status'",
        )
