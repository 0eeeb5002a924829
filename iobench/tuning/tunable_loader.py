"""Somebody's own loader, made anew with other settings, without touching its code."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, default_convert

from iobench.base.errors import (
    TargetError,
)
from iobench.loading.foreign import is_dataloader, tensors_of
from iobench.tuning.pickle_check import spawn_problem

DEEPEST = 4  # datasets within datasets
OF_DATALOADER = (
    "num_workers",
    "prefetch_factor",
    "pin_memory",
    "persistent_workers",
    "multiprocessing_context",
    "batch_fetch",
    "worker_threads",
)
OF_OURS = ("batch_fetch", "worker_threads")  # which are no arguments of DataLoader's
_USUAL = {  # that need not be written
    "num_workers": "0",
    "prefetch_factor": "2",
    "pin_memory": "False",
    "persistent_workers": "False",
    "timeout": "0",
    "drop_last": "False",
    **dict.fromkeys(("collate_fn", "worker_init_fn", "generator", "multiprocessing_context"), "None"),
}
OF_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context")

Changes = Mapping[str, Any]


class TunableLoader:
    """A loader, and the same with other settings.

    Of torch's DataLoader each setting can be had, because another one is built over the same dataset; of
    anything else those that `make`, the function that made it, `takes` by name; `workers` is how many of
    them that function was told, or has by default. Loaders that read in this
    process and those that fork workers have a dataset each (a shallow copy, in which all that is large is
    shared): a file that the one opens when first asked is not to be taken along by the fork of the other.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        make: Callable[..., Iterable[Any]] | None = None,
        takes: Iterable[str] = (),
        workers: int = 0,
    ) -> None:
        self.loader: Any = loader
        self._workers = workers
        self._make = make
        self.rebuilds = is_dataloader(loader) and type(loader).__iter__ is DataLoader.__iter__
        self.settable = frozenset(OF_DATALOADER if self.rebuilds else takes if make else ())
        self._other = self._copied()
        self._kept: dict[str, Any] = {}
        if iter_is_itself(loader) and make is None:
            raise TargetError(
                "it can be gone over only once: give the function that makes it, or anything that "
                "can be gone over again"
            )

    def made(self, changes: Changes) -> Iterable[Any]:
        """The loader with these settings: the given one where there are none, and one for all of its turns
        where its workers persist."""
        if not changes:
            return self._make() if self._make and iter_is_itself(self.loader) else self.loader
        if not self.rebuilds:
            assert self._make is not None
            return self._make(**changes)
        key = repr(sorted(changes.items()))
        if key in self._kept:
            return self._kept[key]  # type: ignore[no-any-return]
        made = rebuilt(self.loader, changes, self.dataset_for(changes))
        if made.persistent_workers:
            self._kept[key] = made
        return made  # type: ignore[no-any-return]

    def workers(self, changes: Changes) -> int:
        """How many workers it has with these settings, as far as that can be told."""
        now = self.loader.num_workers if self.rebuilds else self._workers
        return int(changes.get("num_workers", now))

    @property
    def tells_workers(self) -> bool:
        """Whether how many workers it has can be told: a DataLoader's, or those that a function is told."""
        return self.rebuilds or "num_workers" in self.settable

    @cached_property
    def spawn_problem(self) -> str | None:
        """Why its workers cannot be spawned; None where they can, or nobody can tell."""
        return spawn_problem(self.loader) if self.rebuilds else None

    def close(self) -> None:
        """Let go of all that was built, and with that of workers that persist."""
        self._kept.clear()

    def dataset_for(self, changes: Changes) -> Any:
        """The dataset of a DataLoader with these settings: the given one, or its copy."""
        now, then = self.workers({}), self.workers(changes)
        return self.loader.dataset if bool(now) == bool(then) else self._other

    def _copied(self) -> Any:
        return copied(self.loader.dataset) if self.rebuilds else None


def iter_is_itself(loader: Any) -> bool:
    """Whether it is an iterator, as generators are: gone over once, it is used up."""
    return hasattr(loader, "__next__")


def copied(dataset: Any, depth: int = 0) -> Any:
    """A dataset that shares all values with this one, but not who holds them, in the datasets in it likewise.

    The dataset itself where it cannot be copied.
    """
    try:
        made = copy.copy(dataset)
        held = vars(made)
    except Exception:  # noqa: BLE001 - whatever somebody's dataset says to being copied
        return dataset
    for name, value in held.items() if depth < DEEPEST else ():
        if isinstance(value, Dataset):
            held[name] = copied(value, depth + 1)
        elif isinstance(value, (list, tuple)) and any(isinstance(one, Dataset) for one in value[:1]):
            held[name] = type(value)(copied(one, depth + 1) for one in value)
    return made


def rebuilt(loader: Any, changes: Changes, dataset: Any = None) -> Any:
    """A DataLoader like the given one but for these arguments; without changes that loader itself.

    Beside DataLoader's own, `batch_fetch` asks the dataset for whole batches, and `worker_threads` says how
    many threads each worker's libraries have.
    """
    if not changes:
        return loader
    arguments = _arguments(loader, changes)
    if threads := changes.get("worker_threads"):
        arguments["worker_init_fn"] = partial(with_threads, threads, arguments["worker_init_fn"])
    return DataLoader(loader.dataset if dataset is None else dataset, **arguments)


def code_of(loader: Any, changes: Changes) -> str:
    """The call that makes a DataLoader like `loader` but for these arguments."""
    said = {}
    for name, value in _arguments(loader, changes).items():
        own = next((n for n in (name, "batch_sampler") if getattr(loader, n, None) is value), None)
        by_name = own is not None and name not in changes and not isinstance(value, (int, float, type(None)))
        said[name] = f"loader.{own}" if by_name else repr(value)
    if loader.collate_fn is default_collate:
        said.pop("collate_fn")
    if changes.get("worker_threads"):
        limited = f"threadpoolctl.threadpool_limits({changes['worker_threads']})"
        theirs = f"({limited}, loader.worker_init_fn(number))" if loader.worker_init_fn else limited
        said["worker_init_fn"] = f"lambda number: {theirs}"
    told = (f"{name}={value}" for name, value in said.items() if value != _USUAL.get(name))
    return f"DataLoader(loader.dataset, {', '.join(told)})"


def _arguments(loader: Any, changes: Changes) -> dict[str, Any]:
    """DataLoader's arguments for a loader like the given one but for these."""
    own = {name: value for name, value in changes.items() if name not in OF_OURS}
    arguments = {**_kept(loader), **_batching(loader, changes.get("batch_fetch", False)), **own}
    if not arguments["num_workers"]:
        arguments = {name: value for name, value in arguments.items() if name not in OF_WORKERS}
        arguments["timeout"] = 0
    return arguments


def with_threads(threads: int, then: Callable[[int], None] | None, worker: int) -> None:
    """Limit the threads of every library in a worker, the first thing in it; what it did first comes next."""
    import threadpoolctl

    threadpoolctl.threadpool_limits(threads)
    if then is not None:
        then(worker)


def _kept(loader: Any) -> dict[str, Any]:
    kept = {"collate_fn": loader.collate_fn, "pin_memory": loader.pin_memory, "timeout": loader.timeout}
    kept |= {"num_workers": loader.num_workers, "worker_init_fn": loader.worker_init_fn}
    kept |= {"generator": loader.generator, "multiprocessing_context": loader.multiprocessing_context}
    if loader.num_workers:
        kept |= {"prefetch_factor": loader.prefetch_factor, "persistent_workers": loader.persistent_workers}
    return kept


def _batching(loader: Any, whole: bool) -> dict[str, Any]:
    if whole:
        return {"batch_size": None, "sampler": loader.batch_sampler, "collate_fn": None}
    if isinstance(loader.dataset, IterableDataset):
        return {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if loader.batch_sampler is not None:
        return {"batch_sampler": loader.batch_sampler}
    return {"batch_size": None, "sampler": loader.sampler}


def fetches_batches(own: TunableLoader) -> bool:
    """Whether the dataset, asked for a list of samples at once, gives the batch that collating gives.

    It is asked through a copy, so that no file stays open in it.
    """
    loader: Any = own.loader
    if not own.rebuilds or loader.batch_sampler is None or isinstance(loader.dataset, IterableDataset):
        return False
    if hasattr(loader.dataset, "__getitems__") or loader.collate_fn is not default_collate:
        return False
    try:
        dataset = copied(loader.dataset)
        size = len(dataset)
        rows = list(dict.fromkeys((0, size // 2, size - 1)))
        whole = default_convert(dataset[rows])  # type: ignore[no-untyped-call]
        single = default_collate([dataset[row] for row in rows])
    except Exception:  # noqa: BLE001 - whatever somebody's dataset says to a list
        return False
    return same(whole, single)


def same(one: Any, other: Any) -> bool:
    """Whether two samples or batches hold the same tensors."""
    ones, others = tensors_of(one), tensors_of(other)
    return (
        len(ones) == len(others) > 0
        and isinstance(one, dict) == isinstance(other, dict)
        and all(
            type(a) is type(b) and a.shape == b.shape and a.dtype == b.dtype and bool((a == b).all())
            for a, b in zip(ones, others, strict=True)
        )
    )
