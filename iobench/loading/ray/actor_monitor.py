"""Waiting for an actor that may die, fall silent or never begin."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

from iobench.base.errors import LoaderFailed
from iobench.loading.ray.actor import Shipment

START_S = 120.0  # for an actor to be placed, and to import torch
SILENT_S = 30.0  # without a sign of life, after which an actor counts as dead
TRANSFER_S = 120.0  # for what is ready to arrive
POLL_S = 1.0


class BatchTimeout(Exception):
    """No batch came within the loader's own timeout."""


class ActorSilent(Exception):
    """An actor that had begun gives no sign of life."""


@cache
def actor_errors() -> tuple[type[Exception], ...]:
    """The errors after which another actor has to do the work."""
    from ray import exceptions as of_ray

    lost = (of_ray.ObjectLostError, of_ray.OutOfMemoryError, of_ray.GetTimeoutError)
    return (ActorSilent, of_ray.RayActorError, of_ray.WorkerCrashedError, of_ray.NodeDiedError, *lost)


class ActorMonitor:
    """What comes of an actor, which is asked for a sign of life as long as nothing does."""

    def __init__(self, actor: Any) -> None:
        self._actor, self._started = actor, False
        self._question: Any = None
        self._since_s = time.monotonic()

    def outcome(self, reference: Any, until: float) -> Shipment:
        """What a reference stands for.

        One of `actor_errors()`, BatchTimeout when `until` has come, LoaderFailed where the actor has never begun.
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

        if self._question is None:
            self._question, self._since_s = self._actor.alive.remote(), time.monotonic()
        elif ray.wait([self._question], timeout=0)[0]:
            ray.get(self._question, timeout=TRANSFER_S)
            self._question, self._started = None, True
        elif time.monotonic() - self._since_s > (SILENT_S if self._started else START_S):
            self._given_up()

    def _given_up(self) -> None:
        if self._started:
            raise ActorSilent(f"no sign of life for {SILENT_S:g} s")
        raise LoaderFailed(
            f"a RayLoader worker has not started within {START_S:g} s: Ray has no room for it, or is still "
            "starting; ask for fewer workers, or look at `ray status`"
        )
