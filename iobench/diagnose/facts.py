"""What can be read off a loader without running it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from iobench.loading.foreign import is_dataloader


@dataclass(frozen=True)
class Facts:
    """A loader's settings; those of torch's DataLoader are None for any other iterable."""

    kind: str  # the name of its class
    dataset: str | None = None  # the name of its dataset's class
    workers: int | None = None
    batch_size: int | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    by_sample: bool | None = None  # asked for one sample at a time
    tensor_dataset: bool = False
    in_order: bool = False  # samples are asked for as they are stored
    handles: list[str] = field(
        default_factory=list
    )  # open in the dataset, and not to be taken along by a fork
    chunks: list[str] = field(default_factory=list)  # of HDF5, that hold several samples each


def facts_of(loader: Any) -> Facts:
    """The facts about a loader."""
    if not is_dataloader(loader):
        return Facts(kind=type(loader).__name__)
    from torch.utils.data import IterableDataset, SequentialSampler, TensorDataset

    dataset = loader.dataset
    by_sample = (
        loader.batch_sampler is not None
        and not isinstance(dataset, IterableDataset)
        and not hasattr(dataset, "__getitems__")
    )
    return Facts(
        kind=type(loader).__name__,
        dataset=type(dataset).__name__,
        workers=loader.num_workers,
        batch_size=getattr(loader.batch_sampler, "batch_size", None),
        prefetch_factor=loader.prefetch_factor,
        pin_memory=loader.pin_memory,
        persistent_workers=loader.persistent_workers,
        by_sample=by_sample,
        tensor_dataset=isinstance(dataset, TensorDataset),
        in_order=isinstance(loader.sampler, SequentialSampler),
        handles=_handles(dataset),
        chunks=_chunks(dataset),
    )


def _handles(dataset: Any) -> list[str]:
    h5py, lmdb = sys.modules.get("h5py"), sys.modules.get("lmdb")
    found = []
    for name, value in _attributes(dataset):
        if h5py is not None and isinstance(value, (h5py.File, h5py.Dataset, h5py.Group)) and value:
            found.append(f"{name} (h5py)")
        if lmdb is not None and isinstance(value, (lmdb.Environment, lmdb.Transaction)):
            found.append(f"{name} (lmdb)")
    return found


def _chunks(dataset: Any) -> list[str]:
    h5py = sys.modules.get("h5py")
    if h5py is None:
        return []
    found = []
    for name, value in _attributes(dataset):
        inside = [value] if isinstance(value, h5py.Dataset) else []
        if isinstance(value, h5py.Group) and value:
            inside = [item for item in value.values() if isinstance(item, h5py.Dataset)]
        chunked = [one for one in inside if one.chunks and one.chunks[0] > 1]
        found += [f"{name}: chunks of {one.chunks[0]} samples" for one in chunked]
    return found


def _attributes(dataset: Any) -> Iterator[tuple[str, Any]]:
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
