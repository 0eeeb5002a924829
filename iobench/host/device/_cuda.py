"""CUDA: its events alone can be waited for asleep; the generic one drops `blocking` and spins."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from iobench.host.device._accelerator import Accelerator
from iobench.host.device.nvml import Gpu


class Cuda(Accelerator):
    """CUDA: events that put a thread to sleep, and a management library that knows the card."""

    def current_stream(self) -> Any:
        """The stream that the calling thread's work goes to."""
        import torch

        return torch.cuda.current_stream(self.torch)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Have what the block asks of the device go to a stream of it."""
        import torch

        return torch.cuda.stream(stream)

    def event(self) -> Any:
        """An event that puts who waits for it to sleep."""
        import torch

        return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]

    @property
    def uuid(self) -> str | None:
        """What the driver's management library knows it by."""
        import torch

        return str(torch.cuda.get_device_properties(self.torch).uuid)

    def identity(self) -> dict[str, Any]:
        """What it is, as torch and the driver say."""
        import torch

        found = torch.cuda.get_device_properties(self.torch)
        with Gpu.of(self.uuid) as gpu:
            facts = gpu.facts()
        own = {"name": found.name, "memory_bytes": found.total_memory, "uuid": self.uuid}
        return {**own, "cuda": torch.version.cuda, **facts}

    def _timing_event(self) -> Any:
        import torch

        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def _new_stream(self) -> Any:
        import torch

        return torch.cuda.Stream(self.torch)  # type: ignore[no-untyped-call]
