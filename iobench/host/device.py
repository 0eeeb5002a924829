"""Devices that batches go to: the one room that knows what each back end of torch calls things.

torch.accelerator does what it can. The rest is CUDA's own: its events alone can be waited for
asleep (the generic one drops `blocking` and spins), and its streams come with them.
"""

from __future__ import annotations

import functools
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from iobench.errors import DeviceUnavailable, InvalidSettings
from iobench.host.marks import DeviceMark, HostMark, Mark
from iobench.host.memory import touched_array
from iobench.host.nvml import Gpu
from iobench.units import counted

if TYPE_CHECKING:
    import torch

KNOWN = ("cuda", "xpu", "mps")  # back ends that are named even where this torch was built without them

Bytes = npt.NDArray[np.uint8]


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


KINDS: dict[str, type[Device]] = {"cpu": Device, "cuda": Cuda, "mps": Mps}


@functools.cache
def device_of(device: torch.device) -> Device:
    """What there is to know and to do about a device; the same object for the life of the process."""
    return KINDS.get(device.type, Accelerator)(device)


def pick_device(name: str) -> torch.device:
    """The device of that name; `auto` is the accelerator where there is one, else the CPU.

    Without a number it is the current one, as torchrun's ranks set it. InvalidSettings where it is
    not auto, cpu or a back end of torch; DeviceUnavailable where it is not here.
    """
    import torch

    here, count = _accelerator()
    kind, colon, index = name.partition(":")
    known = tuple(dict.fromkeys((*KNOWN, *([here] if here else []))))
    if kind not in ("auto", "cpu", *known) or (colon and (kind not in known or not index.isdecimal())):
        raise InvalidSettings(f"unknown device {name!r}; known: {_names(known)}")
    if kind == "cpu" or (kind == "auto" and not count):
        return torch.device("cpu")
    found = count if kind in ("auto", here) else 0
    number = int(index) if index else torch.accelerator.current_device_index() if found else 0
    if number >= found:
        label = kind.upper()
        there = counted(found, f"{label} device") if found else f"no {label} device"
        raise DeviceUnavailable(f"--device {name}: this machine has {there}; use --device cpu or auto")
    assert here is not None
    return torch.device(here, number)


def own_device(name: str, local_rank: int) -> str:
    """The device that a rank of a host uses where cases name it so, made this process's current one.

    One without a number stands for one to each rank; with a number the ranks share it. DeviceUnavailable
    where the host has too few.
    """
    import torch

    here, count = _accelerator()
    if name == "cpu" or ":" in name or name != here:
        return str(pick_device(name))
    if local_rank >= count:
        there = counted(count, f"{name.upper()} device") if count else f"no {name.upper()} device"
        raise DeviceUnavailable(
            f"--device {name}: local rank {local_rank} has none of its own, this machine has {there}; start "
            f"fewer ranks, or name one that they share, as in --device {name}:0"
        )
    torch.accelerator.set_device_index(local_rank)
    return f"{name}:{local_rank}"


def in_use() -> str:
    """The accelerator that this process has begun to use, or cpu; loads nothing to find out."""
    torch = sys.modules.get("torch")
    if torch is None:
        return "cpu"
    kind = _accelerator()[0]
    begun = getattr(torch.get_device_module(kind), "is_initialized", bool) if kind else bool
    return kind if kind and begun() else "cpu"


def _accelerator() -> tuple[str | None, int]:
    """The kind of accelerator that this torch is built for, and how many of them are here."""
    import torch

    found = torch.accelerator.current_accelerator()
    return (found.type, torch.accelerator.device_count()) if found else (None, 0)


def _names(known: tuple[str, ...]) -> str:
    numbered = [name for kind in known for name in ((kind,) if kind == "mps" else (kind, f"{kind}:0"))]
    return ", ".join(["auto", "cpu", *numbered, "…"])
