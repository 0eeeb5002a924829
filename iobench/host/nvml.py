"""State of an NVIDIA GPU from NVML, the driver's management library; empty where it is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True)
class GpuSnapshot:
    """State of a GPU; a field is None if the driver does not report it."""

    busy: float | None = None  # share of the driver's last sampling period, 0 to 1
    memory_bytes: int | None = None  # in use by all processes
    power_w: float | None = None
    clock_mhz: int | None = None  # of its multiprocessors
    throttled: list[str] | None = None  # reasons for reduced clocks under load; empty if there are none


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

    def snapshot(self) -> GpuSnapshot:
        """Return the current state."""
        return GpuSnapshot(
            busy=self._ask(lambda n, gpu: n.nvmlDeviceGetUtilizationRates(gpu).gpu / 100),
            memory_bytes=self._ask(lambda n, gpu: int(n.nvmlDeviceGetMemoryInfo(gpu).used)),
            power_w=self._ask(lambda n, gpu: n.nvmlDeviceGetPowerUsage(gpu) / 1000),
            clock_mhz=self._ask(lambda n, gpu: n.nvmlDeviceGetClockInfo(gpu, n.NVML_CLOCK_SM)),
            throttled=self._ask(lambda n, gpu: reasons(n.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))),
        )

    def facts(self) -> dict[str, Any]:
        """Return driver, NUMA node, PCIe link, power limit in watts and clocks in MHz.

        An idle link runs at a lower generation; the `_max` values are those of which it is capable.
        """
        address = self._ask(lambda n, gpu: _text(n.nvmlDeviceGetPciInfo(gpu).busId))
        queries: dict[str, Callable[[Any, Any], Any]] = {
            "driver": lambda n, gpu: _text(n.nvmlSystemGetDriverVersion()),
            "pcie_generation": lambda n, gpu: n.nvmlDeviceGetCurrPcieLinkGeneration(gpu),
            "pcie_generation_max": lambda n, gpu: n.nvmlDeviceGetMaxPcieLinkGeneration(gpu),
            "pcie_width": lambda n, gpu: n.nvmlDeviceGetCurrPcieLinkWidth(gpu),
            "pcie_width_max": lambda n, gpu: n.nvmlDeviceGetMaxPcieLinkWidth(gpu),
            "power_limit_w": lambda n, gpu: n.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
            "clock_mhz": lambda n, gpu: n.nvmlDeviceGetClockInfo(gpu, n.NVML_CLOCK_SM),
            "clock_max_mhz": lambda n, gpu: n.nvmlDeviceGetMaxClockInfo(gpu, n.NVML_CLOCK_SM),
        }
        return {
            **{name: self._ask(query) for name, query in queries.items()},
            "numa_node": numa_node(address),
        }

    def _ask(self, query: Callable[[Any, Any], Any]) -> Any:
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
