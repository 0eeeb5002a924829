"""RayLoader: a DataLoader whose workers are Ray actors."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import cycle
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from iobench.base.errors import InvalidSettings, LoaderFailed
from iobench.base.text import reason
from iobench.contrib.ray import ray_runtime
from iobench.contrib.ray.actor import WorkerSpec
from iobench.contrib.ray.packed import pack, pageable, pinned
from iobench.contrib.ray.remote_worker import BatchTimeout, RemoteWorker, WorkerConfig, round_robin
from iobench.host.device import device_of, pick_device

PLACED = {"scheduling_strategy": "SPREAD"}  # over all hosts, to use the cores of all


class RayLoader(DataLoader[Any]):
    """torch's DataLoader with Ray actors as its workers, on all hosts of a cluster.

    Batches come in DataLoader's order and with its random numbers: worker i of n makes the batches i, i + n,
    i + 2n, seeded with the base seed and i. An actor that dies is replaced. The new one repeats its batches
    with the same random numbers, if these come from the generators of Python, NumPy and torch. Several
    batches below a MiB are shipped together, for which the sampler is read further ahead than by DataLoader.

    It connects to the Ray of this process or of `RAY_ADDRESS`, or starts one for this process. Without
    workers it behaves as DataLoader; if Ray is not installed, too, with one warning. Every actor receives
    a copy of the dataset at the start of an epoch, or once with `persistent_workers`. The dataset and the
    results of `collate_fn` are pickled, as for spawned workers.

    Parameters
    ----------
    dataset, batch_size, …
        As DataLoader's. The order is always kept (`in_order`), and `multiprocessing_context` has no effect on
        actors.
    actor_options
        Ray's `options()` for each actor, such as ``{"num_cpus": 1}`` or ``{"resources": {"loading": 1}}``.

    Raises
    ------
    InvalidSettings
        For an IterableDataset (`iterable-dataset`).
    LoaderFailed
        If Ray or a worker does not start, the dataset cannot be pickled (`not-picklable`), or workers die
        repeatedly on the same batch (`worker-died`).
    RuntimeError
        If no batch arrives within `timeout` seconds.
    Exception
        Any error of the dataset, with the worker's traceback in its message, as with DataLoader.
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
        if num_workers > 0 and isinstance(dataset, IterableDataset):
            expected, found = (
                "a dataset that is read by index",
                f"{type(dataset).__name__}, an IterableDataset",
            )
            hint = "use torch's DataLoader"
            raise InvalidSettings("RayLoader", "iterable-dataset", expected=expected, found=found, hint=hint)
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
        self.actor_options = actor_options  # public, for a Trainer that makes the loader again
        self._persistent: _Workers | None = None
        if num_workers > 0 and not self._remote:
            warn_once()

    def check_worker_number_rationality(self) -> None:
        """Warn of more workers than cores, as DataLoader does; not of actors, which other hosts may run."""
        if not self._remote:
            super().check_worker_number_rationality()

    def __iter__(self) -> Any:
        """Return an iterator over an epoch's batches; the first ones are requested immediately."""
        if not self._remote:
            return super().__iter__()
        workers = self._persistent or _Workers(self)
        if self.persistent_workers:
            self._persistent = workers
        return workers.epoch(iter(self.sampler if self.batch_sampler is None else self.batch_sampler))

    def close(self) -> None:
        """End persistent actors; the next epoch starts new ones."""
        if self._persistent is not None:
            self._persistent.close()
            self._persistent = None


class _Workers:
    """The actors of one epoch, or of all epochs; they end with the last reference to this object."""

    def __init__(self, loader: RayLoader) -> None:
        import ray

        ray_runtime.connect(loader.num_workers)
        config = WorkerConfig(
            ray.put(_packed(loader)),
            {**PLACED, **(loader.actor_options or {})},
            loader.prefetch_factor or 1,
            loader.timeout,
            pinned if loader.pin_memory and not device_of(pick_device("auto")).is_host else pageable,
        )
        self._members = [RemoteWorker(config, number) for number in range(loader.num_workers)]
        self._finish = weakref.finalize(self, _end, self._members)
        self._keeps, self._timeout, self._epochs = loader.persistent_workers, loader.timeout, 0

    def epoch(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return an iterator over the batches of these indices, the first of which are already requested."""
        for member, own in zip(self._members, round_robin(batches, len(self._members)), strict=True):
            member.begin(own)
        self._epochs += 1
        return self._batches(self._epochs)

    def close(self) -> None:
        """End the actors, and the current epoch."""
        self._epochs += 1
        self._finish()

    def _batches(self, epoch: int) -> Iterator[Any]:
        try:
            for member in cycle(self._members):
                if epoch != self._epochs:  # another epoch has begun with these workers
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
    except Exception as error:  # pickle raises many classes, and does not name the object
        problem = f"RayLoader cannot pickle the dataset, collate_fn or worker_init_fn: {reason(error)}"
        raise LoaderFailed(problem, "not-picklable") from error


def _end(members: list[RemoteWorker]) -> None:
    for member in members:
        member.kill()


@cache
def warn_once() -> None:
    """Warn that actors need Ray; further calls do nothing."""
    warnings.warn(
        "RayLoader: Ray is not installed; torch's own workers read on this machine instead. "
        'For actors: pip install "iobench[ray]"',
        stacklevel=3,
    )
