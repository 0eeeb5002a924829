"""NumPy arrays over the memory of torch tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy.typing as npt

if TYPE_CHECKING:
    import torch


def array_of(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return an array that shares the memory of a CPU tensor."""
    import torch

    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    return tensor.view(torch.int16).numpy().view("bfloat16")  # torch does not know NumPy's bfloat16
