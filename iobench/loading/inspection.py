"""Inspection of user-defined loaders, datasets and batches, and replay of batches: no sample is read."""

from __future__ import annotations

import copy
import inspect
import io
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from iobench.base.errors import TargetError
from iobench.formats import Ragged, Schema
from iobench.host.device import Device
from iobench.host.memory import file_behind
from iobench.loading.collate import COLLATED
from iobench.loading.tensors import tensor_of

if TYPE_CHECKING:
    import torch


MAX_TENSORS = 10_000  # in a batch
CLOSED = ("torch", "numpy.lib.npyio")  # whose objects hold none, or what cannot be looked at
MAX_DEPTH = 4  # of datasets within datasets


def is_dataloader(loader: Any) -> bool:
    """Return whether a loader is torch's DataLoader; always False while torch is not imported."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(loader, data.DataLoader)


def length_of(loader: Any) -> int | None:
    """Return the number of batches; None for generators, endless loaders and others without a length."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def is_single_pass(loader: Any) -> bool:
    """Return True for an iterator, such as a generator, which one loop exhausts."""
    return hasattr(loader, "__next__")


def batch_tensors(batch: Any) -> list[Any]:
    """Return the tensors and arrays in a batch, at any depth of nesting."""
    tensors: list[Any] = []
    rest = [batch]
    while rest and len(tensors) < MAX_TENSORS:
        item = rest.pop()
        if hasattr(item, "shape") and hasattr(item, "nbytes"):
            tensors.append(item)
        elif isinstance(item, dict):
            rest.extend(reversed(item.values()))
        elif isinstance(item, (list, tuple)):
            rest.extend(reversed(item))
        elif hasattr(item, "items") and hasattr(item, "keys"):  # a TensorDict or another mapping
            rest.extend(value for _, value in item.items())
    return tensors


def samples_in(tensors: list[Any]) -> int:
    """Return the number of samples in a batch: the first axis of its first tensor.

    If that has no axes, the number of tensors.
    """
    return int(tensors[0].shape[0]) if tensors and tensors[0].shape else len(tensors)


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


def open_handles(dataset: Any) -> list[str]:
    """Return the open files of a dataset, which a fork must not inherit: processes share their position."""
    h5py, lmdb, lance = (sys.modules.get(name) for name in ("h5py", "lmdb", "lance"))
    zipfile, npyio = (sys.modules.get(name) for name in ("zipfile", "numpy.lib.npyio"))
    files = (io.FileIO, io.BufferedReader, io.BufferedRandom, io.TextIOWrapper)
    handles = []
    for name, value in attributes_of(dataset):
        if h5py is not None and isinstance(value, (h5py.File, h5py.Dataset, h5py.Group)) and value:
            handles.append(f"{name} (h5py)")
        if lmdb is not None and isinstance(value, (lmdb.Environment, lmdb.Transaction)):
            handles.append(f"{name} (lmdb)")
        if lance is not None and isinstance(value, lance.LanceDataset):
            handles.append(f"{name} (lance)")
        held = value.zip if npyio is not None and isinstance(value, npyio.NpzFile) else value
        held = held.fp if zipfile is not None and isinstance(held, zipfile.ZipFile) else held
        if isinstance(held, files) and not held.closed:
            handles.append(f"{name} (file)")
    return handles


def attributes_of(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values of a dataset's globals, its attributes and those of datasets inside it.

    Datasets inside it are, for example, those of Subset and ConcatDataset.
    """
    yield from _globals(dataset)
    for name, value in vars(dataset).items() if hasattr(dataset, "__dict__") else ():
        yield name, value
        inner = value if isinstance(value, (list, tuple)) and len(value) < 64 else [value]
        for one in inner:
            if (
                hasattr(one, "__getitem__")
                and hasattr(one, "__dict__")
                and type(one).__module__ not in CLOSED
            ):
                yield from ((f"{name}.{key}", item) for key, item in vars(one).items())


def shallow_copy(dataset: Any, depth: int = 0) -> Any:
    """Return a copy of a dataset that shares its values; datasets inside it are copied as well.

    The dataset itself where it cannot be copied.
    """
    from torch.utils.data import Dataset

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


def _globals(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Yield the module's globals that the methods which return samples refer to."""
    for method in ("__getitem__", "__getitems__", "__iter__"):
        function = getattr(type(dataset), method, None)
        known = getattr(function, "__globals__", {})
        names = function.__code__.co_names if inspect.isfunction(function) else ()
        yield from ((name, known[name]) for name in names if name in known)


def named_tensors(batch: Any, schema: Schema) -> dict[str, torch.Tensor]:
    """Return the tensors of a batch by name.

    The names are the batch's own keys, else those of the dataset's fields if there are as many, else numbers.
    Raises TargetError if the batch holds no tensors.
    """
    import torch

    pairs = list(batch.items()) if hasattr(batch, "items") and hasattr(batch, "keys") else None
    values = [value for _, value in pairs] if pairs is not None else batch
    leaves = list(values) if isinstance(values, (list, tuple)) else [values]
    names = [str(name) for name, _ in pairs] if pairs is not None else _names(len(leaves), schema)
    tensors = {
        name: tensor_of(leaf) if isinstance(leaf, np.ndarray) else leaf
        for name, leaf in zip(names, leaves, strict=True)
        if isinstance(leaf, (torch.Tensor, np.ndarray))
    }
    if not tensors:
        raise TargetError(
            "the batches of the loader",
            kind="no-tensors",
            expected="a tensor, or a tuple or dict of tensors",
            found=f"{type(batch).__name__} without tensors or arrays",
        )
    return tensors


def samples_of(batch: Mapping[str, torch.Tensor]) -> int:
    """Return the number of samples in a batch: the first axis of the first tensor that has axes."""
    return next((int(one.shape[0]) for one in batch.values() if one.ndim), 1)


def is_lazy(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a view of a mapped file."""
    return tensor.device.type == "cpu" and tensor.numel() > 0 and file_behind(tensor.data_ptr()) is not None


def _names(count: int, schema: Schema) -> list[str]:
    fields = [field.name for field in schema.fields]
    return fields if len(fields) == count else [str(number) for number in range(count)]


T = TypeVar("T")

MAX_HELD, MAX_HELD_BYTES = 16, 256 << 20


class Replay(Generic[T]):
    """The first batches of a loop, copied to a device, as a loader of `count` batches.

    Tensors are copied even on the CPU, since a loader may reuse their memory.
    """

    def __init__(self, device: Device, count: int = 0) -> None:
        self.device, self.count, self.held, self._bytes = device, count, list[T](), 0

    def hold(self, batch: T) -> None:
        """Store a copy of a batch, up to 16 batches or 256 MiB."""
        if len(self.held) < MAX_HELD and self._bytes < MAX_HELD_BYTES:
            self.held.append(self._copied(batch))
            self._bytes += sum(one.nbytes for one in batch_tensors(batch))

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[T]:
        for number in range(self.count if self.held else 0):
            yield self.held[number % len(self.held)]

    def _copied(self, batch: T) -> T:
        if "torch" not in sys.modules:
            return batch
        import torch
        from torch.utils import _pytree

        def copied(leaf: Any) -> Any:
            moves = isinstance(leaf, (torch.Tensor, Ragged, *COLLATED))
            return leaf.to(self.device.torch, copy=True) if moves else leaf

        copy: T = _pytree.tree_map(copied, batch)
        return copy
