"""Objects with tensors and arrays in them, packed for Ray's object store and unpacked into fresh memory.

Ray takes NumPy arrays out of what it pickles and maps them read-only where they arrive; tensors it pickles
byte by byte. Here both travel beside the pickle, and arrive in memory of the receiver's own, which may be
written to, as batches of torch's workers may.
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
    """A copy in ordinary memory."""
    copy: Bytes = buffer.copy()
    return copy


def pinned(buffer: Bytes) -> Bytes:
    """A copy in pinned memory, from torch's cache of it, which waits for copies to a device."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*not writable")  # nobody writes to it
        tensor = torch.from_numpy(buffer)
    copy: Bytes = tensor.pin_memory().numpy()
    return copy


@dataclass(frozen=True)
class Packed:
    """A pickle, and the memory of its arrays and tensors."""

    pickled: bytes
    buffers: list[Bytes]

    @property
    def nbytes(self) -> int:
        """Bytes that travel."""
        return len(self.pickled) + sum(buffer.nbytes for buffer in self.buffers)

    def unpacked(self, copy: Copy = pageable) -> Any:
        """The object, its arrays and tensors in memory of their own."""
        return pickle.loads(self.pickled, buffers=map(copy, self.buffers))


def pack(value: Any) -> Packed:
    """An object packed; whatever error the pickling of it raises."""
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
    """Whether a value is a tensor that is nothing but numbers in this machine's memory."""
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
