"""Torch's tensors as NumPy arrays of the same memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iobench.formats._schema import Array

if TYPE_CHECKING:
    import torch


def array_of(tensor: torch.Tensor) -> Array:
    """An array over the memory of a tensor on the CPU."""
    import torch

    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    return tensor.view(torch.int16).numpy().view("bfloat16")  # torch does not know NumPy's
