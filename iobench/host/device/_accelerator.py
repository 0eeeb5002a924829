"""Devices driven through torch.accelerator: every backend without a module of its own here."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from typing import Any

from iobench.host.device._host import Device
from iobench.host.device.marks import DeviceMark, Mark
from iobench.host.memory import Bytes


class Accelerator(Device):
    """A device driven through torch.accelerator, such as XPU; base class of CUDA and MPS."""

    pins = True
    side_streams = True

    def use(self) -> None:
        """Make it the calling thread's current device."""
        import torch

        torch.accelerator.set_device_index(self.torch)

    def current(self) -> AbstractContextManager[Any]:
        """Make it the current device for a block."""
        import torch

        return torch.accelerator.device_index(self.torch.index)

    def synchronize(self) -> None:
        """Wait until all streams of the device are done."""
        import torch

        torch.accelerator.synchronize(self.torch)

    def mark(self) -> Mark:
        """Record a mark behind the work submitted to the current stream so far."""
        event = self.timing_event()
        event.record(self.current_stream())
        return DeviceMark(event)

    def memory(self, count: int) -> Bytes:
        """Return `count` bytes of pinned memory from torch's caching allocator."""
        import torch

        with self.current():
            array: Bytes = torch.empty(count, dtype=torch.uint8, pin_memory=True).numpy()
        return array

    def peak_bytes(self) -> tuple[int, int] | None:
        """Return peak memory (allocated, reserved) in bytes since `reset_peak`."""
        import torch

        api = torch.accelerator
        return api.max_memory_allocated(self.torch), api.max_memory_reserved(self.torch)

    def reset_peak(self) -> None:
        """Reset the peak memory statistics."""
        import torch

        torch.accelerator.reset_peak_memory_stats(self.torch)

    def empty_caches(self) -> None:
        """Release the device memory that torch caches."""
        import torch

        torch.accelerator.empty_cache()

    def allocations(self) -> int | None:
        """Return the number of allocations that torch has requested from the driver."""
        import torch

        stats = torch.accelerator.memory_stats(self.torch)  # empty before the first allocation
        return stats.get("num_device_alloc") if stats else 0

    def identity(self) -> dict[str, Any] | None:
        """Return the device's name and memory in bytes, from torch."""
        import torch

        properties = torch.get_device_module(self.torch).get_device_properties(self.torch)
        return {"name": properties.name, "memory_bytes": properties.total_memory, "driver": None}

    @functools.cached_property
    def side_stream(self) -> Any:
        """Stream for copies, in addition to the consumer's; one for the life of the process.

        Memory cached by torch belongs to a stream: a new stream per epoch would request new memory from
        the driver in each epoch.
        """
        return self._new_stream()

    def current_stream(self) -> Any:
        """Return the current stream of the calling thread."""
        import torch

        return torch.accelerator.current_stream(self.torch)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Make `stream` the current stream for a block."""
        context: AbstractContextManager[Any] = stream
        return context

    def event(self) -> Any:
        """Return an event to be recorded once; threads that wait for it sleep where possible."""
        import torch

        return torch.Event(self.torch)

    def timing_event(self) -> Any:
        import torch

        return torch.Event(self.torch, enable_timing=True)

    def _new_stream(self) -> Any:
        import torch

        return torch.Stream(self.torch)
