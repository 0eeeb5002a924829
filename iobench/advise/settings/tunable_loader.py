"""A user's loader, rebuilt with other settings without touching its code."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, default_collate, default_convert

from iobench.advise.settings.pickle_check import spawn_problem
from iobench.advise.settings.rebuilt_loader import Changes, rebuilt
from iobench.base.finding import Finding
from iobench.loading.inspection import is_single_pass, same_tensors, shallow_copy
from iobench.loading.target import parse_target

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
    """A loader, or the one that `train.py:make_loader` makes, that can be rebuilt with other settings.

    A DataLoader's settings can all be changed: another one is built over the same dataset. For any other
    loader they are the parameters of the function that builds it.

    Loaders that read in this process and those that fork workers have a dataset each, a shallow copy that
    shares all large values: a file that one of them opens on first use must not be inherited by the fork
    of the other.

    TargetError if the loader cannot be built.
    """

    def __init__(self, target: str | Iterable[Any]) -> None:
        call = parse_target(target) if isinstance(target, str) else None
        self.name = call.name if call else type(target).__name__
        self.loader: Any = call.build() if call else target
        own: Any = self.loader
        self._make = call.build if call else None
        self._workers = call.argument_or_default("num_workers") if call else None
        self.rebuilds = isinstance(own, DataLoader) and type(own).__iter__ is DataLoader.__iter__
        self.settable = frozenset(DATALOADER_SETTINGS if self.rebuilds else call.parameters if call else ())
        self._other_dataset = shallow_copy(own.dataset) if self.rebuilds else None
        self._persistent: dict[str, Any] = {}

    @property
    def single_pass(self) -> bool:
        """True for an iterator that no function builds again."""
        return self._make is None and is_single_pass(self.loader)

    @property
    def unchanged(self) -> Iterable[Any]:
        """The user's own loader, built again if it is an iterator that a loop has exhausted."""
        return self._make() if self._make and is_single_pass(self.loader) else self.loader

    def with_changes(self, changes: Changes) -> Iterable[Any]:
        """Return the loader with these settings; with persistent workers it is the same object each time."""
        if not changes:
            return self.unchanged
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
        count = changes.get("num_workers", now)
        return int(count) if isinstance(count, int) else 0

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
