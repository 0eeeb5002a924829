"""A user's loader, rebuilt with other settings without touching its code."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, default_convert

from iobench.advise.settings.pickle_check import spawn_problem
from iobench.advise.settings.rebuilt_loader import Changes, rebuilt
from iobench.base.errors import TargetError
from iobench.base.finding import Finding
from iobench.loading.inspection import batch_tensors
from iobench.loading.target import parse_target

MAX_DEPTH = 4  # of datasets within datasets
DATALOADER_SETTINGS = (
    "num_workers",
    "prefetch_factor",
    "pin_memory",
    "persistent_workers",
    "multiprocessing_context",
    "batch_fetch",
    "worker_threads",
)


class TunableLoader:
    """A loader that can be rebuilt with other settings.

    A DataLoader's settings can all be changed: another one is built over the same dataset. For any other
    loader they are the parameters of the function that builds it.

    Loaders that read in this process and those that fork workers have a dataset each, a shallow copy that
    shares all large values: a file that one of them opens on first use must not be inherited by the fork
    of the other.

    `make` is the function that built the loader, `takes` are the names of its parameters, `workers` is the
    number that it was given or has by default. TargetError (``single-pass``) for an iterator without one.
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
        self.rebuilds = isinstance(loader, DataLoader) and type(loader).__iter__ is DataLoader.__iter__
        self.settable = frozenset(DATALOADER_SETTINGS if self.rebuilds else takes if make else ())
        self._other_dataset = shallow_copy(loader.dataset) if self.rebuilds else None  # type: ignore[attr-defined]
        self._persistent: dict[str, Any] = {}
        if is_single_pass(loader) and make is None:
            raise TargetError(
                "it is an iterator, which can be iterated over only once",
                kind="single-pass",
                hint="give the function that builds it, or an iterable such as a DataLoader",
            )

    def with_changes(self, changes: Changes) -> Iterable[Any]:
        """Return the loader with these settings; the user's own loader without any.

        With persistent workers it is the same object each time.
        """
        if not changes:
            return self._make() if self._make and is_single_pass(self.loader) else self.loader
        if not self.rebuilds:
            assert self._make is not None
            return self._make(**changes)
        key = repr(sorted(changes.items()))
        if key in self._persistent:
            return self._persistent[key]  # type: ignore[no-any-return]
        loader = rebuilt(self.loader, changes, self.dataset_for(changes))
        if loader.persistent_workers:
            self._persistent[key] = loader
        return loader  # type: ignore[no-any-return]

    def workers(self, changes: Changes) -> int:
        """Return its number of workers with these settings; 0 where that is unknown."""
        now = self.loader.num_workers if self.rebuilds else self._workers
        return int(changes.get("num_workers", now))

    @property
    def knows_workers(self) -> bool:
        """True if its number of workers is known: a DataLoader's, or a parameter of its function."""
        return self.rebuilds or "num_workers" in self.settable

    @cached_property
    def spawn_problem(self) -> Finding | None:
        """Reason why its workers cannot be spawned; None if they can, or for other loaders."""
        return spawn_problem(self.loader) if self.rebuilds else None

    def close(self) -> None:
        """Drop the loaders with persistent workers, which ends these."""
        self._persistent.clear()

    def dataset_for(self, changes: Changes) -> Any:
        """Return a DataLoader's dataset for these settings: the given one, or its copy."""
        now, then = self.workers({}), self.workers(changes)
        return self.loader.dataset if bool(now) == bool(then) else self._other_dataset


def resolve_target(target: str | Iterable[Any]) -> tuple[TunableLoader, str]:
    """Return the user's loader and its name; TargetError if it cannot be built."""
    if not isinstance(target, str):
        return TunableLoader(target), type(target).__name__
    called = parse_target(target)
    loader, workers = called.build(), called.argument_or_default("num_workers")
    known = workers if isinstance(workers, int) else 0
    return TunableLoader(loader, called.build, called.parameters, known), called.name


def is_single_pass(loader: Any) -> bool:
    """Return True for an iterator, such as a generator, which one loop exhausts."""
    return hasattr(loader, "__next__")


def shallow_copy(dataset: Any, depth: int = 0) -> Any:
    """Return a copy of a dataset that shares its values; datasets inside it are copied as well.

    The dataset itself where it cannot be copied.
    """
    try:
        copied = copy.copy(dataset)
        held = vars(copied)
    except Exception:  # noqa: BLE001 - a user's dataset may raise anything when it is copied
        return dataset
    for name, value in held.items() if depth < MAX_DEPTH else ():
        if isinstance(value, Dataset):
            held[name] = shallow_copy(value, depth + 1)
        elif isinstance(value, (list, tuple)) and any(isinstance(one, Dataset) for one in value[:1]):
            held[name] = type(value)(shallow_copy(one, depth + 1) for one in value)
    return copied


def fetches_batches(loader: TunableLoader) -> bool:
    """Return True if the dataset, indexed with a list, gives the same batch as collating its samples.

    A copy of the dataset is asked, so that no file stays open in the original.
    """
    own: Any = loader.loader
    if not loader.rebuilds or own.batch_sampler is None or isinstance(own.dataset, IterableDataset):
        return False
    if hasattr(own.dataset, "__getitems__") or own.collate_fn is not default_collate:
        return False
    try:
        dataset = shallow_copy(own.dataset)
        size = len(dataset)
        rows = list(dict.fromkeys((0, size // 2, size - 1)))
        whole = default_convert(dataset[rows])  # type: ignore[no-untyped-call]
        single = default_collate([dataset[row] for row in rows])
    except Exception:  # noqa: BLE001 - a user's dataset may raise anything for a list
        return False
    return same_tensors(whole, single)


def same_tensors(one: Any, other: Any) -> bool:
    """Return True if two samples or batches hold the same tensors."""
    ones, others = batch_tensors(one), batch_tensors(other)
    return (
        len(ones) == len(others) > 0
        and isinstance(one, dict) == isinstance(other, dict)
        and all(
            type(a) is type(b) and a.shape == b.shape and a.dtype == b.dtype and bool((a == b).all())
            for a, b in zip(ones, others, strict=True)
        )
    )
