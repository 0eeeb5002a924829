"""Objects that hold tensors and arrays, packed for Ray's object store and unpacked into new memory.

Ray by itself maps NumPy arrays read-only on arrival, and pickles tensors byte by byte. Here the memory of
both travels next to the pickle and arrives in the receiver's own memory. It is writable, as batches of
torch's workers are.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Bytes = npt.NDArray[np.uint8]
Copy = Callable[[Bytes], Bytes]


def pageable(buffer: Bytes) -> Bytes:
    """Return a copy in pageable memory."""
    copy: Bytes = buffer.copy()
    return copy


def pinned(buffer: Bytes) -> Bytes:
    """Return a copy in pinned memory from torch's cache, which waits for pending copies to a device."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*not writable")  # it is only read
        tensor = torch.from_numpy(buffer)
    copy: Bytes = tensor.pin_memory().numpy()
    return copy


@dataclass(frozen=True)
class Packed:
    """A pickle, and the memory of its arrays and tensors apart from it."""

    pickled: bytes
    buffers: list[Bytes]

    @property
    def nbytes(self) -> int:
        """Bytes to transfer."""
        return len(self.pickled) + sum(buffer.nbytes for buffer in self.buffers)

    def unpacked(self, copy: Copy = pageable) -> Any:
        """Return the object, with arrays and tensors in new memory."""
        return pickle.loads(self.pickled, buffers=map(copy, self.buffers))


def pack(value: Any) -> Packed:
    """Pack an object; raises any error that pickling it raises."""
    from ray import cloudpickle

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if _is_plain(obj):
                return _reduced(obj)
            return super().reducer_override(obj)

    file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    pickler: Any = Pickler(file, protocol=5, buffer_callback=buffers.append)
    pickler.dump(value)
    return Packed(file.getvalue(), [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers])


def _is_plain(value: Any) -> bool:
    """Return whether a value is a plain dense tensor in host memory, without gradient."""
    return (
        type(value) is torch.Tensor
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and value.numel() > 0
        and not (value.requires_grad or value.is_quantized or value.is_conj() or value.is_neg())
    )


def _reduced(tensor: torch.Tensor) -> tuple[Any, ...]:
    array: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return _tensor, (pickle.PickleBuffer(array), tensor.dtype, tensor.shape)


def _tensor(buffer: Any, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    return torch.from_numpy(buffer).view(dtype).reshape(shape)
