"""Somebody's loader and its batches, as far as they can be told without running anything of theirs."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

MOST_LEAVES = 10_000  # of a batch that are counted


def is_dataloader(loader: Any) -> bool:
    """Whether it is torch's DataLoader; without torch loaded, nothing is."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(loader, data.DataLoader)


def length_of(loader: Any) -> int | None:
    """How many batches it has; None of an endless one, a generator, or one that does not say."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def tensors_of(batch: Any) -> list[Any]:
    """The tensors and arrays in a batch, however it nests them."""
    found: list[Any] = []
    rest = [batch]
    while rest and len(found) < MOST_LEAVES:
        item = rest.pop()
        if hasattr(item, "shape") and hasattr(item, "nbytes"):
            found.append(item)
        elif isinstance(item, dict):
            rest.extend(reversed(item.values()))
        elif isinstance(item, (list, tuple)):
            rest.extend(reversed(item))
        elif hasattr(item, "items") and hasattr(item, "keys"):  # a TensorDict, or one's own mapping
            rest.extend(value for _, value in item.items())
    return found


def samples_in(tensors: list[Any]) -> int:
    """How many samples a batch of these tensors has: the first axis of the first; else how many there are."""
    return int(tensors[0].shape[0]) if tensors and tensors[0].shape else len(tensors)


def handles_of(dataset: Any) -> list[str]:
    """What is open of HDF5, LMDB and Lance in a dataset, and not to be taken along by a fork."""
    h5py, lmdb, lance = (sys.modules.get(name) for name in ("h5py", "lmdb", "lance"))
    found = []
    for name, value in attributes_of(dataset):
        if h5py is not None and isinstance(value, (h5py.File, h5py.Dataset, h5py.Group)) and value:
            found.append(f"{name} (h5py)")
        if lmdb is not None and isinstance(value, (lmdb.Environment, lmdb.Transaction)):
            found.append(f"{name} (lmdb)")
        if lance is not None and isinstance(value, lance.LanceDataset):
            found.append(f"{name} (lance)")
    return found


def attributes_of(dataset: Any) -> Iterator[tuple[str, Any]]:
    """What the dataset holds, what the datasets in it hold (Subset, ConcatDataset, …), and its globals."""
    yield from _globals(dataset)
    for name, value in vars(dataset).items() if hasattr(dataset, "__dict__") else ():
        yield name, value
        inner = value if isinstance(value, (list, tuple)) and len(value) < 64 else [value]
        for one in inner:
            if hasattr(one, "__getitem__") and hasattr(one, "__dict__") and type(one).__module__ != "torch":
                yield from ((f"{name}.{key}", item) for key, item in vars(one).items())


def _globals(dataset: Any) -> Iterator[tuple[str, Any]]:
    """What the methods that give samples name of their module."""
    for method in ("__getitem__", "__getitems__", "__iter__"):
        function = getattr(type(dataset), method, None)
        known = getattr(function, "__globals__", {})
        names = function.__code__.co_names if inspect.isfunction(function) else ()
        yield from ((name, known[name]) for name in names if name in known)
