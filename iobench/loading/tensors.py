"""Conversion of arrays to tensors that share their memory, for all loaders."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from iobench.formats import Array, Batch, Field, Ragged, Schema, map_arrays
from iobench.loading.collate import COLLATED

if TYPE_CHECKING:
    import torch

HostBatch: TypeAlias = Any  # dict[str, Tensor], or a tensorclass of the same fields


def converter(schema: Schema) -> Callable[[Array], torch.Tensor]:
    """Return the function that makes tensors of these fields: torch's own, unless one is bfloat16."""
    import torch

    return tensor_of if any(field.dtype == "bfloat16" for field in schema.fields) else torch.from_numpy


def tensor_of(array: Array) -> torch.Tensor:
    """Return a tensor that shares the array's memory."""
    import torch

    if array.dtype.kind == "V" and array.dtype == "bfloat16":  # torch does not accept ml_dtypes' dtype
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def elements_of(field: Field, stored: bytes | Array | torch.Tensor) -> torch.Tensor:
    """Return a sample of a ragged field as a tensor; `stored` is what a library read: bytes or an array."""
    if isinstance(stored, bytes):
        stored = np.frombuffer(bytearray(stored), field.dtype).reshape(-1, *field.inner)
    return tensor_of(stored) if isinstance(stored, np.ndarray) else stored


def unmoved(array: Array) -> bool:
    """Return True if an array from a reader is a view of a mapped file, of which nothing was read yet."""
    return not array.flags.writeable


def silence_read_only_warning() -> None:
    """Trigger and suppress torch's once-per-process warning about read-only arrays, which are copied."""
    import torch

    read_only = np.zeros(1)
    read_only.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.from_numpy(read_only)


def tensors_of(batch: Batch, convert: Callable[[Array], torch.Tensor] = tensor_of) -> dict[str, torch.Tensor]:
    """Return a batch of tensors that share the memory of a batch of arrays."""
    return {name: map_arrays(convert, array) for name, array in batch.items()}


def tensors_in(batch: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors of a batch; a field whose samples differ in length has several."""
    for one in batch.values():
        yield from one.tensors if isinstance(one, (Ragged, *COLLATED)) else (one,)


def pinned(batch: Any) -> Any:
    """Return a copy in pinned memory of a batch, a dict of tensors or a tensorclass."""
    if isinstance(batch, dict):
        return {name: tensor.pin_memory() for name, tensor in batch.items()}
    return batch.pin_memory()
