"""Arrays as tensors that share their memory, for every loader."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.formats import Array, Batch

if TYPE_CHECKING:
    import torch


def tensor_of(array: Array) -> torch.Tensor:
    """A tensor over the memory of an array."""
    import torch

    if array.dtype == "bfloat16":  # torch does not know NumPy's
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def unmoved(array: Array) -> bool:
    """Whether an array out of a reader is a view of a file, of which no byte has moved."""
    return not array.flags.writeable


def silence_read_only_warning() -> None:
    """Spend torch's one warning per process about read-only arrays: they are copied at once."""
    import torch

    read_only = np.zeros(1)
    read_only.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.from_numpy(read_only)


def tensors_of(batch: Batch) -> dict[str, torch.Tensor]:
    """A batch of tensors over the memory of a batch of arrays."""
    return {name: tensor_of(array) for name, array in batch.items()}


def pinned(batch: Any) -> Any:
    """A copy of a batch, a dict of tensors or a tensorclass, in pinned memory."""
    if isinstance(batch, dict):
        return {name: tensor.pin_memory() for name, tensor in batch.items()}
    return batch.pin_memory()
