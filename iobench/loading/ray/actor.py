"""What an actor does: batches of a dataset, as a worker of torch's DataLoader makes them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from iobench.loading.ray.packed import Packed, pack
from iobench.loading.ray.random_state import RandomState, become_worker


@dataclass(frozen=True)
class WorkerSpec:
    """What all workers of a loader are given."""

    dataset: Any
    collate_fn: Callable[[Any], Any]
    batched: bool  # asked for batches of indices, not for one index at a time
    worker_init_fn: Callable[[int], None] | None
    base_seed: int
    workers: int


@dataclass(frozen=True)
class Shipment:
    """Batches that travel together, in the order in which they were asked for, or why one could not be had.

    `random`: the state after the last of them; `seconds`: what it took to make them.
    """

    batches: list[Packed | ExceptionWrapper]
    random: RandomState
    seconds: float

    @property
    def nbytes(self) -> int:
        """Bytes of all its batches."""
        return sum(batch.nbytes for batch in self.batches if isinstance(batch, Packed))


class Worker:
    """Makes batches in an actor.

    `path`: where the training process finds modules, so that those of the dataset are found here, too.
    `random`, if given, is where an actor that died had got to.
    """

    def __init__(self, work: Packed, path: list[str], number: int, random: RandomState | None = None) -> None:
        self._work, self._number, self._random = work, number, random
        sys.path += [folder for folder in path if folder not in sys.path]
        self._where = f"in RayLoader worker {number}"
        self._fetch: Callable[[Any], Any] | None = None

    def ship(self, asked: Sequence[Any]) -> Shipment:
        """The batches of these indices; in the place of one that cannot be had its error."""
        began = time.perf_counter()
        batches = [self._batch(one) for one in asked]
        return Shipment(batches, RandomState.now(), time.perf_counter() - began)

    def _batch(self, indices: Any) -> Packed | ExceptionWrapper:
        try:
            fetch = self._fetch or self._begin()
            return pack(fetch(indices))
        except Exception:  # noqa: BLE001 - whatever a dataset raises, its loader raises
            return ExceptionWrapper(where=self._where)  # type: ignore[no-untyped-call]

    def _begin(self) -> Callable[[Any], Any]:
        """Make this process a worker: in the thread that reads, its errors being those of a batch."""
        work: WorkerSpec = self._work.unpacked()
        become_worker(self._number, work.workers, work.base_seed, work.dataset)
        if work.worker_init_fn is not None:
            work.worker_init_fn(self._number)
        fetcher = _MapDatasetFetcher(work.dataset, work.batched, work.collate_fn, False)
        if self._random is not None:
            self._random.restore()
        self._fetch = fetcher.fetch
        return self._fetch


@cache
def actor_class() -> Any:
    """Worker as a class of actors, whose sign of life comes past the batches that it makes."""
    import ray

    class Actor(Worker):
        @ray.method(concurrency_group="life")  # type: ignore[untyped-decorator]
        def alive(self) -> None:
            """Answer, while a batch is made as well."""

    remote: Any = ray.remote(concurrency_groups={"life": 1})
    return remote(Actor)
