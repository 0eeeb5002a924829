"""A worker as the training process sees it: what it is asked for, what comes, who follows when it dies."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch._utils import ExceptionWrapper

from iobench.base.errors import LoaderFailed
from iobench.base.text import reason
from iobench.base.units import MIB
from iobench.loading.ray.actor import Shipment, actor_class
from iobench.loading.ray.actor_monitor import ActorMonitor, actor_errors
from iobench.loading.ray.packed import Copy, Packed
from iobench.loading.ray.random_state import RandomState

DEATHS = 3  # in a row, after which it is the batch that kills
JOINED_BYTES, JOINED_S, JOINED = MIB, 0.1, 256  # a shipment is joined until it has one of these


@dataclass(frozen=True)
class WorkerConfig:
    """What the workers of a loader have in common: their work in Ray's object store, and how they are run."""

    work: Any  # a reference: as long as it is held, an actor that dies can be replaced
    options: Mapping[str, Any]
    ahead: int  # shipments
    timeout: float
    copy: Copy  # of batches that have come


class RemoteWorker:
    """One actor after the other under one number; batches come in the order in which they were asked for."""

    def __init__(self, config: WorkerConfig, number: int) -> None:
        self._config, self.number = config, number
        self._asked: deque[tuple[Sequence[Any], Any]] = deque()  # indices, and the reference to their batches
        self._ready: deque[Packed | ExceptionWrapper] = deque()
        self._random: RandomState | None = None
        self._batches_per_shipment = 1
        self._start()

    def begin(self, more: Callable[[int], Sequence[Any]]) -> None:
        """Begin an epoch, and ask ahead; `more` gives at most so many of the indices of its next batches."""
        self._asked.clear()
        self._ready.clear()
        self._more = more
        self._ask()

    def next(self) -> Any:
        """The next batch; StopIteration after the last.

        Whatever its dataset raised, BatchTimeout, or LoaderFailed where nothing is to be had of it.
        """
        if not self._ready:
            self._receive()
        batch = self._ready.popleft()
        if isinstance(batch, ExceptionWrapper):
            batch.reraise()  # type: ignore[no-untyped-call]
            raise AssertionError("an error raises itself")
        return batch.unpacked(self._config.copy)

    def kill(self) -> None:
        """End the actor, in whatever it does."""
        import ray

        if ray.is_initialized():
            ray.kill(self._actor)

    def _start(self) -> None:
        made = actor_class().options(**self._config.options)
        self._actor = made.remote(self._config.work, sys.path, self.number, self._random)
        self._monitor = ActorMonitor(self._actor)

    def _ask(self) -> None:
        while len(self._asked) < self._config.ahead and (indices := self._more(self._batches_per_shipment)):
            self._asked.append((indices, self._actor.ship.remote(indices)))

    def _receive(self) -> None:
        if not self._asked:
            raise StopIteration
        shipment = self._shipment()
        self._asked.popleft()
        self._random = shipment.random
        self._batches_per_shipment = _batches_per_shipment(shipment)
        self._ready.extend(shipment.batches)
        self._ask()

    def _shipment(self) -> Shipment:
        """The oldest one, of another actor where one dies."""
        until = time.monotonic() + self._config.timeout if self._config.timeout else float("inf")
        for _ in range(DEATHS):
            try:
                return self._monitor.outcome(self._asked[0][1], until)
            except actor_errors() as error:
                why = reason(error)
            self._replace()
        raise LoaderFailed(
            f"RayLoader worker {self.number} died {DEATHS} times over the same batch; the last time: {why}"
        )

    def _replace(self) -> None:
        """Another actor, which goes on where this one has got to with what has not arrived."""
        self.kill()
        self._start()
        again = [(indices, self._actor.ship.remote(indices)) for indices, _ in self._asked]
        self._asked = deque(again)


class IndexDealer:
    """Deals the batches of an epoch out to workers in turn, as torch does."""

    def __init__(self, batches: Iterator[Any], workers: int) -> None:
        self._batches, self._hands = batches, [deque[Any]() for _ in range(workers)]

    def take(self, worker: int, most: int) -> list[Any]:
        """At most so many of the next batches of a worker; none after its last."""
        hand = self._hands[worker]
        while len(hand) < most and self._deal():
            pass
        return [hand.popleft() for _ in range(min(most, len(hand)))]

    def _deal(self) -> bool:
        dealt = list(islice(self._batches, len(self._hands)))
        for hand, batch in zip(self._hands, dealt, strict=False):
            hand.append(batch)
        return len(dealt) == len(self._hands)


def _batches_per_shipment(shipment: Shipment) -> int:
    """How many batches the next shipment is to have, to judge by the last one."""
    count = len(shipment.batches)
    by_bytes = JOINED_BYTES * count / max(1, shipment.nbytes)
    by_time = JOINED_S * count / max(1e-9, shipment.seconds)
    return max(1, min(int(by_bytes), int(by_time), JOINED))
