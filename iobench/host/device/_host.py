"""The CPU as a device, and the interface of all devices."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from iobench.host.device.marks import HostMark, Mark
from iobench.host.memory import Bytes, touched_array

if TYPE_CHECKING:
    import torch


class Device:
    """Interface of a device; this class is the CPU, where nothing is copied, awaited or freed."""

    pins = False  # True if host memory can be pinned for it
    side_streams = False  # True if copies can run concurrently with the consumer's stream

    def __init__(self, device: torch.device) -> None:
        self.torch = device
        self.is_host = device.type == "cpu"

    def __str__(self) -> str:
        return str(self.torch)

    def use(self) -> None:
        """Make it the calling thread's current device, which torch's pinning threads use."""

    def current(self) -> AbstractContextManager[Any]:
        """Make it the current device for a block.

        The current device of a new thread is device 0, which would be initialized otherwise.
        """
        return nullcontext()

    def synchronize(self) -> None:
        """Wait until all submitted work is done."""

    def mark(self) -> Mark:
        """Record a mark behind the work submitted to the current stream so far."""
        return HostMark()

    def memory(self, count: int) -> Bytes:
        """Return `count` bytes of host memory to copy from, pinned if possible, else touched.

        Raises MemoryError or RuntimeError if the system refuses.
        """
        return touched_array(count)

    def peak_bytes(self) -> tuple[int, int] | None:
        """Return peak memory (allocated, reserved) in bytes since `reset_peak`; None if not counted."""
        return None

    def reset_peak(self) -> None:
        """Reset the peak memory statistics."""

    def empty_caches(self) -> None:
        """Release the device memory that torch caches.

        Pinned host memory stays: pinning it again may take longer than an epoch.
        """

    def allocations(self) -> int | None:
        """Return the number of allocations requested from the driver; None if not counted."""
        return None

    @property
    def uuid(self) -> str | None:
        """UUID by which the driver's management library knows the device; None without one."""
        return None

    def identity(self) -> dict[str, Any] | None:
        """Return the device's name, memory, driver and link for the record; None for the CPU."""
        return None
