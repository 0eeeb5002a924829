"""Apple's Metal Performance Shaders."""

from __future__ import annotations

from typing import Any

from iobench.host.device._accelerator import Accelerator
from iobench.host.memory import Bytes, touched_array


class Mps(Accelerator):
    """An MPS device: one stream, no pinned memory, no memory statistics; copies block the consumer."""

    pins = False
    side_streams = False

    def memory(self, count: int) -> Bytes:
        """Return `count` bytes of touched memory."""
        return touched_array(count)

    def peak_bytes(self) -> tuple[int, int] | None:
        """Return None: MPS does not count."""
        return None

    def reset_peak(self) -> None:
        """Do nothing: MPS does not count."""

    def allocations(self) -> int | None:
        """Return None: MPS does not count."""
        return None

    def identity(self) -> dict[str, Any]:
        """Return the device's name and its recommended maximum memory in bytes."""
        import torch

        return {"name": "MPS", "memory_bytes": torch.mps.recommended_max_memory(), "driver": None}
