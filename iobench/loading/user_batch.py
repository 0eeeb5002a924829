"""Batches of a user's loader: their tensors, by name, and their number of samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.base.errors import TargetError
from iobench.formats import Schema
from iobench.host.memory import file_behind
from iobench.loading.tensors import tensor_of

if TYPE_CHECKING:
    import torch


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
