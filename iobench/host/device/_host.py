"""The host itself as a device; what the others are asked, too."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from iobench.host.device.marks import HostMark, Mark
from iobench.host.memory import touched_array

if TYPE_CHECKING:
    import torch

Bytes: TypeAlias = npt.NDArray[np.uint8]


class Device:
    """The host itself, where a batch is as soon as it was read: nothing to wait for, nothing to free."""

    pins = False  # whether host memory can be pinned for it
    side_streams = False  # whether copies can go on beside the consumer's work

    def __init__(self, device: torch.device) -> None:
        self.torch = device

    def __str__(self) -> str:
        return str(self.torch)

    @property
    def is_host(self) -> bool:
        """Whether it is the host itself."""
        return self.torch.type == "cpu"

    def use(self) -> None:
        """Make it the calling thread's current device, to which torch's pinning threads hold."""

    def current(self) -> AbstractContextManager[Any]:
        """The same for a block: a thread that begins has the first device, and would wake it up."""
        return nullcontext()

    def synchronize(self) -> None:
        """Wait until everything asked of it is done."""

    def mark(self) -> Mark:
        """A mark behind what was asked of the current stream so far."""
        return HostMark()

    def memory(self, count: int) -> Bytes:
        """Host memory to copy from: pinned where it can be, else touched. MemoryError or RuntimeError."""
        return touched_array(count)

    def peak_bytes(self) -> tuple[int, int] | None:
        """Most memory (allocated, reserved) since `reset_peak`; None where nobody keeps account."""
        return None

    def reset_peak(self) -> None:
        """Forget the most memory that was in use."""

    def empty_caches(self) -> None:
        """Give back the device memory that torch keeps for later.

        Not the pinned memory of the host: to pin it again takes longer than an epoch may.
        """

    def allocations(self) -> int | None:
        """How often torch has asked the driver for device memory; None where nobody counts."""
        return None

    @property
    def uuid(self) -> str | None:
        """What its driver's management library knows it by; None where there is no such library."""
        return None

    def identity(self) -> dict[str, Any] | None:
        """What it is, for the record: name, memory, driver and link; None of the host."""
        return None
