"""Devices that batches go to: the only module that uses the backend-specific APIs of torch.

torch.accelerator is used where it suffices. A backend with its own API has a class, and its line in KINDS.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.base.errors import DeviceUnavailable, InvalidSettings
from iobench.base.units import counted
from iobench.host.memory import Bytes, touched_array

if TYPE_CHECKING:
    import torch

KNOWN = ("cuda", "xpu", "mps")  # backends that are known even if this torch is built without them


class Mark:
    """A position in a device's queue of work, and the time at which the device reached it.

    `event` is a timing event that a device has recorded once; without it this is a moment on the host.
    """

    def __init__(self, event: Any = None) -> None:
        self._event, self._at = event, time.perf_counter()

    def reached(self) -> bool:
        """Return True if all work before the mark is done."""
        return self._event is None or bool(self._event.query())

    def seconds_since(self, earlier: Mark) -> float:
        """Return the seconds from another mark of the same device to this one; both must be reached."""
        if self._event is None:
            return self._at - earlier._at
        return float(earlier._event.elapsed_time(self._event)) / 1e3


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
        return Mark()

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


class Accelerator(Device):
    """A device driven through torch.accelerator, such as XPU; base class of CUDA and MPS."""

    pins = True
    side_streams = True

    @property
    def _library(self) -> Any:
        """Module torch, which is imported only where there is such a device."""
        import torch

        return torch

    def use(self) -> None:
        """Make it the calling thread's current device."""
        self._library.accelerator.set_device_index(self.torch)

    def current(self) -> AbstractContextManager[Any]:
        """Make it the current device for a block."""
        make = getattr(self._library.accelerator, "device_index", None)  # from torch 2.8
        block: AbstractContextManager[Any]
        block = (make or self._library.get_device_module(self.torch).device)(self.torch.index)
        return block

    def synchronize(self) -> None:
        """Wait until all streams of the device are done."""
        self._library.accelerator.synchronize(self.torch)

    def mark(self) -> Mark:
        """Record a mark behind the work submitted to the current stream so far."""
        event = self.timing_event()
        event.record(self.current_stream())
        return Mark(event)

    def memory(self, count: int) -> Bytes:
        """Return `count` bytes of pinned memory from torch's caching allocator."""
        with self.current():
            array: Bytes = self._library.empty(count, dtype=self._library.uint8, pin_memory=True).numpy()
        return array

    def peak_bytes(self) -> tuple[int, int] | None:
        """Return peak memory (allocated, reserved) in bytes since `reset_peak`."""
        api = self._memory_api
        return api.max_memory_allocated(self.torch), api.max_memory_reserved(self.torch)

    def reset_peak(self) -> None:
        """Reset the peak memory statistics."""
        self._memory_api.reset_peak_memory_stats(self.torch)

    def empty_caches(self) -> None:
        """Release the device memory that torch caches."""
        self._memory_api.empty_cache()

    def allocations(self) -> int | None:
        """Return the number of allocations that torch has requested from the driver."""
        stats = self._memory_api.memory_stats(self.torch)  # empty before the first allocation
        return stats.get("num_device_alloc") if stats else 0

    @property
    def _memory_api(self) -> Any:
        """Functions about memory: torch.accelerator has them from torch 2.9, the backend's module always."""
        accelerator = self._library.accelerator
        there = hasattr(accelerator, "memory_stats")
        return accelerator if there else self._library.get_device_module(self.torch)

    def identity(self) -> dict[str, Any] | None:
        """Return the device's name and memory in bytes, from torch."""
        properties = self._library.get_device_module(self.torch).get_device_properties(self.torch)
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
        return self._library.accelerator.current_stream(self.torch)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Make `stream` the current stream for a block."""
        context: AbstractContextManager[Any] = stream
        return context

    def event(self) -> Any:
        """Return an event to be recorded once; threads that wait for it sleep where possible."""
        return self._library.Event(self.torch)

    def timing_event(self) -> Any:
        """Return an event that notes the device's time."""
        return self._library.Event(self.torch, enable_timing=True)

    def _new_stream(self) -> Any:
        return self._library.Stream(self.torch)


class Cuda(Accelerator):
    """A CUDA device, with blocking events and NVML's description of the card."""

    def current_stream(self) -> Any:
        """Return the current stream of the calling thread."""
        return self._library.cuda.current_stream(self.torch)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Make `stream` the current stream for a block."""
        context: AbstractContextManager[Any] = self._library.cuda.stream(stream)
        return context

    def event(self) -> Any:
        """Return an event that lets waiting threads sleep."""
        return self._library.cuda.Event(blocking=True)

    @property
    def uuid(self) -> str | None:
        """UUID by which NVML knows the device."""
        return str(self._library.cuda.get_device_properties(self.torch).uuid)

    def identity(self) -> dict[str, Any]:
        """Return the device's name, memory in bytes, UUID, CUDA version and NVML's facts."""
        properties = self._library.cuda.get_device_properties(self.torch)
        with Gpu.of(self.uuid) as gpu:
            facts = gpu.facts()
        own = {"name": properties.name, "memory_bytes": properties.total_memory, "uuid": self.uuid}
        return {**own, "cuda": self._library.version.cuda, **facts}

    def timing_event(self) -> Any:
        """Return an event that notes the device's time."""
        return self._library.cuda.Event(enable_timing=True)

    def _new_stream(self) -> Any:
        return self._library.cuda.Stream(self.torch)


class Mps(Accelerator):
    """An MPS device: one stream, no pinned memory, no memory statistics; copies block the consumer."""

    pins = False
    side_streams = False

    memory, allocations = Device.memory, Device.allocations
    peak_bytes, reset_peak = Device.peak_bytes, Device.reset_peak

    def identity(self) -> dict[str, Any]:
        """Return the device's name and its recommended maximum memory in bytes."""
        return {"name": "MPS", "memory_bytes": self._library.mps.recommended_max_memory(), "driver": None}


KINDS: dict[str, type[Device]] = {"cpu": Device, "cuda": Cuda, "mps": Mps}


@functools.cache
def device_of(device: torch.device) -> Device:
    """Return the API of a device, the same object for the life of the process."""
    return KINDS.get(device.type, Accelerator)(device)


def device_named(name: str) -> Device:
    """Return the API of a device by its name, such as "cuda:1"."""
    import torch

    return device_of(torch.device(name))


def pick_device(name: str) -> torch.device:
    """Return the device of a name, such as "cuda:1"; "auto" is the accelerator, or the CPU without one.

    A name without a number is the current device, as torchrun's ranks set it. Raises InvalidSettings if the
    name is not auto, cpu or a backend of torch, DeviceUnavailable if the machine does not have the device.
    """
    import torch

    here, count = _accelerator()
    kind, colon, index = name.partition(":")
    known = tuple(dict.fromkeys((*KNOWN, *([here] if here else []))))
    if kind not in ("auto", "cpu", *known) or (colon and (kind not in known or not index.isdecimal())):
        raise InvalidSettings(
            f"unknown device {name!r}", kind="unknown-device", hint=f"use one of {_names(known)}"
        )
    if kind == "cpu" or (kind == "auto" and not count):
        return torch.device("cpu")
    available = count if kind in ("auto", here) else 0
    number = int(index) if index else torch.accelerator.current_device_index() if available else 0
    if number >= available:
        raise DeviceUnavailable(
            f"--device {name} is not on this machine",
            found=_devices(kind, available),
            hint="use --device cpu or auto",
        )
    assert here is not None
    return torch.device(here, number)


def own_device(name: str, local_rank: int) -> str:
    """Return the device that a rank uses for a device name, and make it this process's current one.

    A name without a number stands for one device per rank; a name with a number is shared by all ranks.
    Raises DeviceUnavailable if the host has too few devices.
    """
    import torch

    here, count = _accelerator()
    if name == "cpu" or ":" in name or name != here:
        return str(pick_device(name))
    if local_rank >= count:
        raise DeviceUnavailable(
            f"--device {name}: no device is left for local rank {local_rank}",
            kind="too-many-ranks",
            found=_devices(name, count),
            hint=f"start fewer ranks, or share one device by --device {name}:0",
        )
    torch.accelerator.set_device_index(local_rank)
    return f"{name}:{local_rank}"


def is_device_error(error: BaseException) -> bool:
    """Return True for an error that a device reports; it has a class of its own from torch 2.8."""
    import torch

    own = getattr(torch, "AcceleratorError", None)
    return isinstance(error, own) if own else str(error).startswith("CUDA error")


def in_use() -> str:
    """Return the accelerator that this process has initialized, or "cpu"; imports nothing."""
    torch = sys.modules.get("torch")
    if torch is None:
        return "cpu"
    kind = _accelerator()[0]
    begun = getattr(torch.get_device_module(kind), "is_initialized", bool) if kind else bool
    return kind if kind and begun() else "cpu"


def _accelerator() -> tuple[str | None, int]:
    """Return the kind of accelerator that this torch is built for, and the number of devices."""
    import torch

    try:
        accelerator = torch.accelerator.current_accelerator()
    except RuntimeError:  # before torch 2.7, where it is built for one that is not here
        accelerator = None
    return (accelerator.type, torch.accelerator.device_count()) if accelerator else (None, 0)


def _devices(kind: str, count: int) -> str:
    return counted(count, f"{kind.upper()} device") if count else f"no {kind.upper()} device"


def _names(known: tuple[str, ...]) -> str:
    numbered = [name for kind in known for name in ((kind,) if kind == "mps" else (kind, f"{kind}:0"))]
    return ", ".join(["auto", "cpu", *numbered, "…"])


# bits of nvmlClocksEventReasons that slow down a GPU under load
# (nvml.h: software power cap, hardware slowdown, software and hardware thermal, power brake)
THROTTLING = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "too hot (software)",
    0x40: "too hot (hardware)",
    0x80: "power brake",
}
PCI_DEVICES = Path("/sys/bus/pci/devices")


class Gpu:
    """One GPU, a context manager that releases NVML. Without a handle all answers are None."""

    def __init__(self, handle: Any = None) -> None:
        self._handle = handle

    @classmethod
    def of(cls, uuid: str | None) -> Gpu:
        """Return the GPU with this UUID; one whose answers are all None if NVML is missing."""
        if not uuid:
            return cls()
        import pynvml

        try:
            pynvml.nvmlInit()
            return cls(pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode()))
        except pynvml.NVMLError:  # no such library here
            return cls()

    def __enter__(self) -> Gpu:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Release NVML; a second call does nothing."""
        if self._handle is not None:
            import pynvml

            self._handle = None
            pynvml.nvmlShutdown()

    def snapshot(self) -> dict[str, Any]:
        """Return the current state, by the fields of a `Snapshot`; None for what is not reported."""
        return {name: self._ask(query) for name, query in SNAPSHOT.items()}

    def facts(self) -> dict[str, Any]:
        """Return driver, NUMA node, PCIe link, power limit in watts and clocks in MHz.

        An idle link runs at a lower generation; the `_max` values are those of which it is capable.
        """
        return {
            **{name: self._ask(query) for name, query in FACTS.items()},
            "numa_node": numa_node(self._ask(lambda n, gpu: _text(n.nvmlDeviceGetPciInfo(gpu).busId))),
        }

    def _ask(self, query: Query) -> Any:
        if self._handle is None:
            return None
        import pynvml

        try:
            return query(pynvml, self._handle)
        except pynvml.NVMLError:  # not supported by this card or driver
            return None


def reasons(bits: int) -> list[str]:
    """Return the reasons why a GPU under load runs below its clocks."""
    return [reason for bit, reason in THROTTLING.items() if bits & bit]


def numa_node(address: str | None) -> int | None:
    """Return the NUMA node of a PCI address such as 00000000:65:00.0, or None if unknown."""
    if address is None:
        return None
    domain, _, rest = address.lower().partition(":")
    try:  # NVML writes the domain with eight digits, the kernel with four
        node = int((PCI_DEVICES / f"{domain[-4:]}:{rest}" / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


Query = Callable[[Any, Any], Any]  # of pynvml and a handle
SNAPSHOT: dict[str, Query] = {
    "gpu": lambda n, gpu: n.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    "gpu_memory_bytes": lambda n, gpu: int(n.nvmlDeviceGetMemoryInfo(gpu).used),
    "gpu_power_w": lambda n, gpu: n.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "gpu_clock_mhz": lambda n, gpu: n.nvmlDeviceGetClockInfo(gpu, n.NVML_CLOCK_SM),
    "gpu_throttled": lambda n, gpu: reasons(n.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)),
}
FACTS: dict[str, Query] = {
    "driver": lambda n, gpu: _text(n.nvmlSystemGetDriverVersion()),
    "pcie_generation": lambda n, gpu: n.nvmlDeviceGetCurrPcieLinkGeneration(gpu),
    "pcie_generation_max": lambda n, gpu: n.nvmlDeviceGetMaxPcieLinkGeneration(gpu),
    "pcie_width": lambda n, gpu: n.nvmlDeviceGetCurrPcieLinkWidth(gpu),
    "pcie_width_max": lambda n, gpu: n.nvmlDeviceGetMaxPcieLinkWidth(gpu),
    "power_limit_w": lambda n, gpu: n.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
    "clock_mhz": lambda n, gpu: n.nvmlDeviceGetClockInfo(gpu, n.NVML_CLOCK_SM),
    "clock_max_mhz": lambda n, gpu: n.nvmlDeviceGetMaxClockInfo(gpu, n.NVML_CLOCK_SM),
}
