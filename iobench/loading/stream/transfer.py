"""The last step of a batch: to stay in host memory, or to go to a CUDA device."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from iobench.host.memory import touched_array

Tensors = dict[str, torch.Tensor]
Bytes = npt.NDArray[np.uint8]


class Transfer:
    """Leaves batches where they are, in ordinary memory."""

    def allocate(self, count: int) -> Bytes:
        """Memory for one slot."""
        return touched_array(count)

    def send(self, batches: list[Tensors]) -> list[Tensors]:
        """The batches where the consumer wants them; host memory may be used again if nobody holds it."""
        return batches

    def hand_over(self, batch: Tensors) -> None:
        """Called in the consumer's thread for each batch that it gets."""


class CudaTransfer(Transfer):
    """Copies batches out of pinned memory on a stream of its own, beside the consumer's work.

    Device memory comes from torch's allocator and belongs to the consumer.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def allocate(self, count: int) -> Bytes:
        """Pinned memory for one slot, from torch's cache of such memory."""
        array: Bytes = torch.empty(count, dtype=torch.uint8, pin_memory=True).numpy()
        return array

    def send(self, batches: list[Tensors]) -> list[Tensors]:
        """The batches on the device, after the last copy has left host memory."""
        with torch.cuda.stream(self._stream):
            moved = [{name: self._copy(tensor) for name, tensor in batch.items()} for batch in batches]
            done = self._mark()
        done.synchronize()  # sleeps, without the interpreter's lock
        return moved

    def hand_over(self, batch: Tensors) -> None:
        """Keep the memory from being given out again before the consumer's stream is through with it."""
        for tensor in batch.values():
            tensor.record_stream(torch.cuda.current_stream(self._device))

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, non_blocking=True)

    def _mark(self) -> Any:
        event: Any = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event


def transfer_to(device: torch.device) -> Transfer:
    """How batches get to a device."""
    return CudaTransfer(device) if device.type == "cuda" else Transfer()
