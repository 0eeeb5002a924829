"""The actor's side of a worker: makes batches as a worker of torch's DataLoader does."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import worker as torch_worker  # for the same numbers as each version of torch
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from iobench.contrib.ray.packed import Packed, pack


@dataclass(frozen=True)
class RandomState:
    """State of the random generators of Python, NumPy and torch."""

    python: Any
    numpy: Any
    torch: bytes

    @classmethod
    def now(cls) -> RandomState:
        """Return the state of this process."""
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state().numpy().tobytes())

    def restore(self) -> None:
        """Set the generators of this process to this state."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(torch.frombuffer(bytearray(self.torch), dtype=torch.uint8))


@dataclass(frozen=True)
class WorkerSpec:
    """Arguments that all workers of a loader receive."""

    dataset: Any
    collate_fn: Callable[[Any], Any]
    batched: bool  # whether requests are batches of indices, not single ones
    worker_init_fn: Callable[[int], None] | None
    base_seed: int
    workers: int


@dataclass(frozen=True)
class Shipment:
    """Batches that are sent together, in the requested order."""

    batches: list[Packed | ExceptionWrapper]  # packed batches; the error in place of a batch that failed
    random: RandomState  # random state after the last batch
    seconds: float  # time that it took to make them

    @property
    def nbytes(self) -> int:
        """Total bytes of its batches."""
        return sum(batch.nbytes for batch in self.batches if isinstance(batch, Packed))


class Worker:
    """Makes batches in an actor, as worker `number` of a packed `WorkerSpec`.

    `path` is the `sys.path` of the training process, so that the dataset's modules can be imported; `random`
    the state to continue from in place of an actor that died.
    """

    def __init__(self, work: Packed, path: list[str], number: int, random: RandomState | None = None) -> None:
        self._work, self._number, self._random = work, number, random
        sys.path += [folder for folder in path if folder not in sys.path]
        self._where = f"in RayLoader worker {number}"
        self._fetch: Callable[[Any], Any] | None = None

    def ship(self, requests: Sequence[Any]) -> Shipment:
        """Return the batches of these indices, with the error in place of a batch that failed."""
        began = time.perf_counter()
        batches = [self._batch(one) for one in requests]
        return Shipment(batches, RandomState.now(), time.perf_counter() - began)

    def _batch(self, indices: Any) -> Packed | ExceptionWrapper:
        try:
            fetch = self._fetch or self._begin()
            return pack(fetch(indices))
        except Exception:  # noqa: BLE001 - the loader raises any error of a dataset
            return ExceptionWrapper(where=self._where)  # type: ignore[no-untyped-call]

    def _begin(self) -> Callable[[Any], Any]:
        """Set this process up as torch sets up a worker: seeds, one thread, and `get_worker_info()`.

        It does so in the reading thread, so that errors become those of a batch.
        """
        work: WorkerSpec = self._work.unpacked()
        number, seed = self._number, work.base_seed + self._number
        random.seed(seed)
        torch.manual_seed(seed)
        generate_state: Any = torch_worker._generate_state
        np.random.seed(generate_state(work.base_seed, number))
        torch.set_num_threads(1)
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=number, num_workers=work.workers, seed=seed, dataset=work.dataset
        )
        if work.worker_init_fn is not None:
            work.worker_init_fn(self._number)
        fetcher = _MapDatasetFetcher(work.dataset, work.batched, work.collate_fn, False)
        if self._random is not None:
            self._random.restore()
        self._fetch = fetcher.fetch
        return self._fetch


@cache
def actor_class() -> Any:
    """Return Worker as an actor class that answers `alive` while it makes batches."""
    import ray

    class Actor(Worker):
        @ray.method(concurrency_group="health")  # type: ignore[untyped-decorator]
        def alive(self) -> None:
            """Answer, even while a batch is made."""

    remote: Any = ray.remote(concurrency_groups={"health": 1})
    return remote(Actor)
