"""A user's loader that can be rebuilt with other settings, and what cannot be sent to its workers."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from inspect import signature
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, default_convert

from iobench.advise.settings.candidate import UNSENDABLE
from iobench.base.finding import Finding
from iobench.base.text import reason
from iobench.base.units import bytes_text
from iobench.loading.inspection import batch_tensors, is_single_pass, open_handles, same_tensors, shallow_copy
from iobench.loading.target import parse_target
from iobench.loading.user_errors import USER_ERRORS
from iobench.results.run_warning import Values

MOST_BYTES = 256 << 20  # of a pickled dataset; each worker receives all of it


def spawn_problem(loader: Any) -> Finding | None:
    """Return why workers of a DataLoader cannot be spawned or come from a fork server; None if they can.

    The dataset and its functions are pickled up to 256 MiB, and none of the bytes are stored. Tensors count
    as nothing: workers share their memory.
    """
    main: Any = sys.modules["__main__"]
    if (problem := _script_problem(main)) is not None:
        return problem
    try:
        _SizePickler(main).dump((loader.dataset, loader.collate_fn, loader.worker_init_fn))
    except _TooLarge:
        message = f"each worker would receive more than {bytes_text(MOST_BYTES)} of its dataset"
        return Finding("dataset-too-large", message, values={"limit_bytes": MOST_BYTES})
    except Exception as error:  # noqa: BLE001 - a user's dataset may raise anything when it is pickled
        values: Values = {"error": type(error).__name__, "reason": reason(error)}
        return Finding("cannot-pickle", f"it cannot be pickled: {reason(error)}", values=values)
    return None


def batch_problem(batch: Any) -> Finding | None:
    """Return why workers could not send a batch like this one to the training process; None if they could."""
    try:
        with open(os.devnull, "wb") as discarded:
            _BatchPickler(discarded).dump(batch)
    except USER_ERRORS as error:
        why = "each would have to pickle its batches, which fails"
        message = f"they are no remedy here: {why}: {reason(error)}"
        hint = "let batches consist of tensors, arrays, numbers and text"
        values: Values = {"error": type(error).__name__, "reason": reason(error)}
        return Finding(UNSENDABLE, message, hint, values)
    return None


class _BatchPickler(ForkingPickler):
    """Pickler of a worker's batches, which leaves tensors where they are."""

    def reducer_override(self, obj: Any) -> Any:
        """Skip tensors, which move to shared memory; raise what torch raises for those in a graph."""
        if not isinstance(obj, torch.Tensor):
            return NotImplemented
        if obj.requires_grad and not obj.is_leaf:
            raise pickle.PicklingError("a tensor with a gradient function")
        return int, ()


class _TooLarge(Exception):
    """More pickled bytes than any worker should receive."""


class _SizePickler(pickle.Pickler):
    """Pickler that counts bytes and discards them; arrays are not even copied."""

    def __init__(self, main: Any) -> None:
        self._size, self._main = 0, main
        super().__init__(self, 5, buffer_callback=lambda buffer: self._grow(buffer.raw().nbytes))

    def write(self, data: bytes) -> int:
        """Count the pickled bytes."""
        self._grow(len(data))
        return len(data)

    def reducer_override(self, obj: Any) -> Any:
        """Skip tensors; raise PicklingError for what no other process could import."""
        if isinstance(obj, torch.Tensor):
            return int, ()
        importable = hasattr(self._main, "__file__") or not isinstance(obj, (type, FunctionType))
        if not importable and obj.__module__ == self._main.__name__:
            raise pickle.PicklingError(f"{obj.__qualname__} is in no file that another process could import")
        return NotImplemented

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > MOST_BYTES:
            raise _TooLarge


def _script_problem(main: Any) -> Finding | None:
    """Return why the main script cannot run again in each worker, as it does in spawned ones."""
    file = Path(getattr(main, "__file__", None) or "")
    if not file.is_file() or "__name__" in file.read_text(errors="replace"):
        return None
    hint = 'put `if __name__ == "__main__":` around its main part'
    message = f"each worker would run {file.name} again"
    return Finding("script-without-guard", message, hint, {"script": file.name})


IOBENCH_SETTINGS = ("batch_fetch", "worker_threads")  # no arguments of DataLoader
WORKER_SETTINGS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "in_order")
# DataLoader's own, which generated code leaves out; with workers the default of `prefetch_factor` becomes 2
_DEFAULTS = {name: repr(one.default) for name, one in signature(DataLoader).parameters.items()}
_DEFAULTS |= {"batch_size": "", "prefetch_factor": "2"}

Changes = Mapping[str, Any]


def rebuilt(loader: Any, changes: Changes, dataset: Any = None) -> Any:
    """Return a DataLoader with the arguments of the given one except for these.

    Two settings are iobench's own: `batch_fetch` asks the dataset for whole batches, and `worker_threads`
    limits the threads of each worker's libraries. Without changes the loader itself is returned.
    """
    if not changes:
        return loader
    arguments = _arguments(loader, changes)
    if threads := changes.get("worker_threads"):
        arguments["worker_init_fn"] = partial(limit_threads, threads, arguments["worker_init_fn"])
    return DataLoader(loader.dataset if dataset is None else dataset, **arguments)


def limit_threads(threads: int, then: Callable[[int], None] | None, worker: int) -> None:
    """Limit the threads of every library in a worker, then run the user's own `worker_init_fn`."""
    import threadpoolctl

    threadpoolctl.threadpool_limits(threads)
    if then is not None:
        then(worker)


def _arguments(loader: Any, changes: Changes) -> dict[str, Any]:
    names = ["collate_fn", "pin_memory", "timeout", "num_workers", "worker_init_fn", "generator"]
    names += ["multiprocessing_context"]
    if loader.num_workers:
        names += ["prefetch_factor", "persistent_workers", "in_order"]
    unchanged = {name: getattr(loader, name) for name in names}
    if changes.get("batch_fetch"):
        batching = {"batch_size": None, "sampler": loader.batch_sampler, "collate_fn": None}
    elif isinstance(loader.dataset, IterableDataset):
        batching = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif loader.batch_sampler is not None:
        batching = {"batch_sampler": loader.batch_sampler}
    else:
        batching = {"batch_size": None, "sampler": loader.sampler}
    own = {name: value for name, value in changes.items() if name not in IOBENCH_SETTINGS}
    arguments = {**unchanged, **batching, **own}
    if not arguments["num_workers"]:
        arguments = {name: value for name, value in arguments.items() if name not in WORKER_SETTINGS}
        arguments["timeout"] = 0
    return arguments


DATALOADER_SETTINGS = ("num_workers", "pin_memory", *WORKER_SETTINGS, *IOBENCH_SETTINGS)


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
        self.fields: list[tuple[tuple[int, ...], str]] = []  # shape and dtype of its first batch's tensors
        self.batch_problem: Finding | None = None  # why no workers could send its batches
        self._persistent: dict[str, Any] = {}

    @property
    def single_pass(self) -> bool:
        """True for an iterator that no function builds again."""
        return self._make is None and is_single_pass(self.loader)

    @property
    def indexes_rows(self) -> bool:
        """True for a DataLoader that indexes its dataset by the rows of each batch."""
        own: Any = self.loader
        indexed = self.rebuilds and not isinstance(own.dataset, IterableDataset)
        return indexed and own.batch_sampler is not None

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

    def note_batch(self, batch: Any) -> None:
        """Note its first batch's tensors, and, with one of this process, if workers could send it others."""
        if self.fields:
            return
        self.fields = [
            (tuple(one.shape), str(one.dtype).removeprefix("torch.")) for one in batch_tensors(batch)
        ]
        if not self.workers({}):
            self.batch_problem = batch_problem(batch)

    @property
    def knows_workers(self) -> bool:
        """True if its number of workers is known: a DataLoader's, or a parameter of its function."""
        return self.rebuilds or "num_workers" in self.settable

    @cached_property
    def spawn_problem(self) -> Finding | None:
        """Reason why its workers cannot be spawned; None if they can, or for other loaders."""
        return spawn_problem(self.loader) if self.rebuilds else None

    def close(self) -> None:
        """End persistent workers.

        Garbage collection would close their queues first, and then wait 5 s for each of them.
        """
        for loader in self._persistent.values():
            if (iterator := getattr(loader, "_iterator", None)) is not None:
                iterator._shutdown_workers()
        self._persistent.clear()

    def code_for(self, changes: Changes) -> str:
        """Return the Python code for these settings."""
        if not self.rebuilds:
            return ", ".join(f"{name}={value!r}" for name, value in changes.items())
        own, texts = self.loader, dict[str, str]()
        for name, value in _arguments(own, changes).items():
            given = next((n for n in (name, "batch_sampler") if getattr(own, n, None) is value), None)
            plain = name in changes or isinstance(value, (int, float, type(None)))
            texts[name] = repr(value) if given is None or plain else f"loader.{given}"
        if own.collate_fn is default_collate:
            texts.pop("collate_fn")
        if changes.get("worker_threads"):
            limited = f"threadpoolctl.threadpool_limits({changes['worker_threads']})"
            both = f"({limited}, loader.worker_init_fn(number))" if own.worker_init_fn else limited
            texts["worker_init_fn"] = f"lambda number: {both}"
        others = (f"{name}={text}" for name, text in texts.items() if text != _DEFAULTS.get(name))
        return f"DataLoader(loader.dataset, {', '.join(others)})"

    @property
    def fetches_batches(self) -> bool:
        """True if the dataset, indexed with a list, gives the same batch as collating its samples.

        A copy of the dataset is asked, so that no file stays open in the original.
        """
        own: Any = self.loader
        if not self.indexes_rows or hasattr(own.dataset, "__getitems__"):
            return False
        if own.collate_fn is not default_collate:
            return False
        try:
            dataset = shallow_copy(own.dataset)
            size = len(dataset)
            rows = list(dict.fromkeys((0, size // 2, size - 1)))
            whole = default_convert(dataset[rows])  # type: ignore[no-untyped-call]
            single = default_collate([dataset[row] for row in rows])
        except USER_ERRORS:  # for a list
            return False
        return same_tensors(whole, single)

    @property
    def fork_problem(self) -> Finding | None:
        """Files that are open in the dataset, which forked workers must not inherit; None without any."""
        held = open_handles(self.dataset_for({"num_workers": 1})) if self.rebuilds else []
        if not held:
            return None
        names = ", ".join(held)
        message = f"{names} is open already and must not be inherited by a fork"
        return Finding("open-handles", message, "open it in the first __getitem__", {"handles": names})

    def dataset_for(self, changes: Changes) -> Any:
        """Return a DataLoader's dataset for these settings: the given one, or its copy."""
        now, then = self.workers({}), self.workers(changes)
        return self.loader.dataset if bool(now) == bool(then) else self._other_dataset
