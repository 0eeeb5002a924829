"""What torch.accelerator names: every back end that has no module of its own here."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from typing import Any

from iobench.host.device._host import Bytes, Device
from iobench.host.device.marks import DeviceMark, Mark


class Accelerator(Device):
    """What torch.accelerator names: CUDA is below, XPU and others are this."""

    pins = True
    side_streams = True

    def use(self) -> None:
        """Make it the calling thread's current device."""
        import torch

        torch.accelerator.set_device_index(self.torch)

    def current(self) -> AbstractContextManager[Any]:
        """The same for a block."""
        import torch

        return torch.accelerator.device_index(self.torch.index)

    def synchronize(self) -> None:
        """Wait until all its streams are done."""
        import torch

        torch.accelerator.synchronize(self.torch)

    def mark(self) -> Mark:
        """A mark behind what was asked of the current stream so far."""
        event = self._timing_event()
        event.record(self.current_stream())
        return DeviceMark(event)

    def memory(self, count: int) -> Bytes:
        """Pinned memory, from torch's cache of it."""
        import torch

        with self.current():
            array: Bytes = torch.empty(count, dtype=torch.uint8, pin_memory=True).numpy()
        return array

    def peak_bytes(self) -> tuple[int, int] | None:
        """Most memory (allocated, reserved) since `reset_peak`."""
        import torch

        found = torch.accelerator
        return found.max_memory_allocated(self.torch), found.max_memory_reserved(self.torch)

    def reset_peak(self) -> None:
        """Forget the most memory that was in use."""
        import torch

        torch.accelerator.reset_peak_memory_stats(self.torch)

    def empty_caches(self) -> None:
        """Give back the device memory that torch keeps for later."""
        import torch

        torch.accelerator.empty_cache()

    def allocations(self) -> int | None:
        """How often torch has asked the driver for device memory."""
        import torch

        return torch.accelerator.memory_stats(self.torch).get("num_device_alloc")

    def identity(self) -> dict[str, Any] | None:
        """Its name and memory, as torch says."""
        import torch

        found = torch.get_device_module(self.torch).get_device_properties(self.torch)
        return {"name": found.name, "memory_bytes": found.total_memory, "driver": None}

    @functools.cached_property
    def side_stream(self) -> Any:
        """The one stream beside the consumer's, for the life of the process.

        Device memory that torch keeps belongs to a stream: with a stream for each epoch, each would
        ask the driver for memory of its own.
        """
        return self._new_stream()

    def current_stream(self) -> Any:
        """The stream that the calling thread's work goes to."""
        import torch

        return torch.accelerator.current_stream(self.torch)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Have what the block asks of the device go to a stream of it."""
        context: AbstractContextManager[Any] = stream
        return context

    def event(self) -> Any:
        """An event to be recorded once, and waited for by streams or by threads, asleep where possible."""
        import torch

        return torch.Event(self.torch)

    def _timing_event(self) -> Any:
        import torch

        return torch.Event(self.torch, enable_timing=True)

    def _new_stream(self) -> Any:
        import torch

        return torch.Stream(self.torch)
