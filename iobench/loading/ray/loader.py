"""RayLoader: a DataLoader whose workers are actors of Ray."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from iobench.base.errors import InvalidSettings, LoaderFailed
from iobench.base.text import reason
from iobench.host.device import device_of, pick_device
from iobench.loading.ray import ray_runtime
from iobench.loading.ray.actor import WorkerSpec
from iobench.loading.ray.actor_monitor import BatchTimeout
from iobench.loading.ray.packed import pack, pageable, pinned
from iobench.loading.ray.remote_worker import IndexDealer, RemoteWorker, WorkerConfig

PLACED = {"scheduling_strategy": "SPREAD"}  # over all hosts: their processors are what it is for


class RayLoader(DataLoader[Any]):
    """torch's DataLoader with actors of Ray as its workers, on all hosts of a ray_runtime.

    The arguments are DataLoader's (the order is kept whatever `in_order` allows, and how processes start is
    of no concern to actors); `actor_options` goes to Ray's `options()` for each actor, such as
    `{"num_cpus": 1}` or `{"resources": {"loading": 1}}`. Batches come in DataLoader's order, and with its
    random numbers: worker i of n makes batches i, i + n, i + 2n, seeded with the base seed and i. An actor
    that dies is replaced, and its batches are made again with the same random numbers, as far as these
    come from the generators of Python, NumPy and torch. Batches below a MiB are shipped several at a time,
    for which the sampler is read further ahead than by DataLoader.

    It connects to the Ray of this process, or to that of `RAY_ADDRESS`, and otherwise starts one for this
    process alone. Where Ray is not installed it is DataLoader, and says so once. Without workers it is
    DataLoader, too. Every actor is given a copy of the dataset when an epoch begins, or once with
    `persistent_workers`; that, and what collate_fn returns, is pickled, as for workers that are spawned.

    InvalidSettings for an IterableDataset; LoaderFailed where Ray or a worker cannot be had, or dies over
    the same batch again and again. What a dataset raises is raised here with the worker's traceback in its
    message, as by DataLoader; RuntimeError where no batch comes within `timeout` seconds.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        in_order: bool = True,
        actor_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._remote = num_workers > 0 and ray_runtime.installed()
        if num_workers > 0:
            _check(dataset)
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            in_order=in_order,
        )
        self._actor_options = {**PLACED, **(actor_options or {})}
        self._kept: _Workers | None = None
        if num_workers > 0 and not self._remote:
            _say_once()

    def check_worker_number_rationality(self) -> None:
        """Warn, as DataLoader does, of more workers than processors; not of actors, which other hosts run."""
        if not self._remote:
            super().check_worker_number_rationality()

    def __iter__(self) -> Any:
        """An epoch of batches; its first ones are asked for at once."""
        if not self._remote:
            return super().__iter__()
        workers = self._kept or _Workers(self)
        if self.persistent_workers:
            self._kept = workers
        return workers.epoch(iter(self.sampler if self.batch_sampler is None else self.batch_sampler))

    def close(self) -> None:
        """End actors that persist; another epoch starts them anew."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None


class _Workers:
    """The actors of an epoch, or of all of them; they end when nobody refers to this any more."""

    def __init__(self, loader: RayLoader) -> None:
        import ray

        ray_runtime.connect(loader.num_workers)
        config = WorkerConfig(
            ray.put(_packed(loader)),
            loader._actor_options,
            loader.prefetch_factor or 1,
            loader.timeout,
            pinned if loader.pin_memory and not device_of(pick_device("auto")).is_host else pageable,
        )
        self._members = [RemoteWorker(config, number) for number in range(loader.num_workers)]
        self._finish = weakref.finalize(self, _end, self._members)
        self._keeps, self._timeout, self._epochs = loader.persistent_workers, loader.timeout, 0

    def epoch(self, batches: Iterator[Any]) -> Iterator[Any]:
        """An iterator over batches of these indices, which have been asked for when this returns."""
        dealer = IndexDealer(batches, len(self._members))
        for member in self._members:
            member.begin(partial(dealer.take, member.number))
        self._epochs += 1
        return self._batches(self._epochs)

    def close(self) -> None:
        """End the actors, and the epoch under way."""
        self._epochs += 1
        self._finish()

    def _batches(self, epoch: int) -> Iterator[Any]:
        try:
            for member in cycle(self._members):
                if epoch != self._epochs:  # these workers have begun another one
                    return
                try:
                    batch = member.next()
                except StopIteration:
                    return
                yield batch
        except BatchTimeout:
            raise RuntimeError(f"RayLoader timed out after {self._timeout} seconds") from None
        finally:
            if not self._keeps:
                self.close()


def _packed(loader: RayLoader) -> Any:
    base_seed = int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item())
    batched = loader.batch_sampler is not None
    collate: Any = loader.collate_fn
    work = WorkerSpec(loader.dataset, collate, batched, loader.worker_init_fn, base_seed, loader.num_workers)
    try:
        return pack(work)
    except Exception as error:  # pickle raises many kinds, none of which says what it is about
        raise LoaderFailed(
            f"RayLoader cannot send the dataset, collate_fn or worker_init_fn to its workers: {reason(error)}"
        ) from error


def _end(members: list[RemoteWorker]) -> None:
    for member in members:
        member.kill()


def _check(dataset: Any) -> None:
    if isinstance(dataset, IterableDataset):
        raise InvalidSettings(
            f"RayLoader reads datasets by index, and {type(dataset).__name__} is an IterableDataset: "
            "use torch's DataLoader for it"
        )


def _say_once() -> None:
    if not _said:
        _said.append(True)
        warnings.warn(
            "RayLoader: Ray is not installed, so torch's own workers read on this machine; "
            'for actors: pip install "iobench[ray]"',
            stacklevel=3,
        )


_said: list[bool] = []
