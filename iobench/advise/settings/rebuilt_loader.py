"""A DataLoader like the user's with some other arguments, and the code that builds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, default_collate

IOBENCH_SETTINGS = ("batch_fetch", "worker_threads")  # no arguments of DataLoader
WORKER_SETTINGS = ("prefetch_factor", "persistent_workers", "multiprocessing_context")
_DEFAULTS = {  # DataLoader's own, which generated code leaves out
    "num_workers": "0",
    "prefetch_factor": "2",
    "pin_memory": "False",
    "persistent_workers": "False",
    "timeout": "0",
    "drop_last": "False",
    **dict.fromkeys(("collate_fn", "worker_init_fn", "generator", "multiprocessing_context"), "None"),
}

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


def code_of(loader: Any, changes: Changes) -> str:
    """Return the call that builds a DataLoader with the arguments of `loader` except for these."""
    texts = {}
    for name, value in _arguments(loader, changes).items():
        own = next((n for n in (name, "batch_sampler") if getattr(loader, n, None) is value), None)
        by_name = own is not None and name not in changes and not isinstance(value, (int, float, type(None)))
        texts[name] = f"loader.{own}" if by_name else repr(value)
    if loader.collate_fn is default_collate:
        texts.pop("collate_fn")
    if changes.get("worker_threads"):
        limited = f"threadpoolctl.threadpool_limits({changes['worker_threads']})"
        both = f"({limited}, loader.worker_init_fn(number))" if loader.worker_init_fn else limited
        texts["worker_init_fn"] = f"lambda number: {both}"
    given = (f"{name}={text}" for name, text in texts.items() if text != _DEFAULTS.get(name))
    return f"DataLoader(loader.dataset, {', '.join(given)})"


def limit_threads(threads: int, then: Callable[[int], None] | None, worker: int) -> None:
    """Limit the threads of every library in a worker, then run the user's own `worker_init_fn`."""
    import threadpoolctl

    threadpoolctl.threadpool_limits(threads)
    if then is not None:
        then(worker)


def _arguments(loader: Any, changes: Changes) -> dict[str, Any]:
    """Return DataLoader's arguments for a loader like the given one except for these."""
    own = {name: value for name, value in changes.items() if name not in IOBENCH_SETTINGS}
    arguments = {**_unchanged(loader), **_batching(loader, changes.get("batch_fetch", False)), **own}
    if not arguments["num_workers"]:
        arguments = {name: value for name, value in arguments.items() if name not in WORKER_SETTINGS}
        arguments["timeout"] = 0
    return arguments


def _unchanged(loader: Any) -> dict[str, Any]:
    names = ["collate_fn", "pin_memory", "timeout", "num_workers", "worker_init_fn", "generator"]
    names += ["multiprocessing_context"]
    if loader.num_workers:
        names += ["prefetch_factor", "persistent_workers"]
    return {name: getattr(loader, name) for name in names}


def _batching(loader: Any, whole: bool) -> dict[str, Any]:
    if whole:
        return {"batch_size": None, "sampler": loader.batch_sampler, "collate_fn": None}
    if isinstance(loader.dataset, IterableDataset):
        return {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if loader.batch_sampler is not None:
        return {"batch_sampler": loader.batch_sampler}
    return {"batch_size": None, "sampler": loader.sampler}
