"""Apple's Metal."""

from __future__ import annotations

from typing import Any

from iobench.host.device._accelerator import Accelerator
from iobench.host.device._host import Bytes
from iobench.host.memory import touched_array


class Mps(Accelerator):
    """Apple's: one stream, nothing pinned, and no account of peaks; batches are copied in the way."""

    pins = False
    side_streams = False

    def memory(self, count: int) -> Bytes:
        """Touched memory."""
        return touched_array(count)

    def peak_bytes(self) -> tuple[int, int] | None:
        """Nobody keeps account."""
        return None

    def reset_peak(self) -> None:
        """Nobody keeps account."""

    def allocations(self) -> int | None:
        """Nobody counts."""
        return None

    def identity(self) -> dict[str, Any]:
        """Its name, and as much memory as it should be asked for."""
        import torch

        return {"name": "MPS", "memory_bytes": torch.mps.recommended_max_memory(), "driver": None}
