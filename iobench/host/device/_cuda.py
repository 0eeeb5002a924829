"""CUDA devices.

They need their own event class: torch.Event ignores `blocking`, so that a waiting thread spins.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from iobench.host.device._accelerator import Accelerator
from iobench.host.device.nvml import Gpu


class Cuda(Accelerator):
    """A CUDA device, with blocking events and NVML's description of the card."""

    def current_stream(self) -> Any:
        """Return the current stream of the calling thread."""
        import torch

        return torch.cuda.current_stream(self.torch)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Make `stream` the current stream for a block."""
        import torch

        return torch.cuda.stream(stream)

    def event(self) -> Any:
        """Return an event that lets waiting threads sleep."""
        import torch

        return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    @property
    def uuid(self) -> str | None:
        """UUID by which NVML knows the device."""
        import torch

        return str(torch.cuda.get_device_properties(self.torch).uuid)

    def identity(self) -> dict[str, Any]:
        """Return the device's name, memory in bytes, UUID, CUDA version and NVML's facts."""
        import torch

        properties = torch.cuda.get_device_properties(self.torch)
        with Gpu.of(self.uuid) as gpu:
            facts = gpu.facts()
        own = {"name": properties.name, "memory_bytes": properties.total_memory, "uuid": self.uuid}
        return {**own, "cuda": torch.version.cuda, **facts}

    def timing_event(self) -> Any:
        import torch

        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def _new_stream(self) -> Any:
        import torch

        return torch.cuda.Stream(self.torch)  # type: ignore[no-untyped-call]
