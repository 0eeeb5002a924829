"""An NVIDIA GPU as its driver's management library sees it; nothing where there is no such library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# bits of nvmlClocksEventReasons that take speed from a GPU that has work
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
    """A GPU at one moment; None where the driver does not say."""

    busy: float | None = None  # 0 to 1, over the driver's own last period
    memory_bytes: int | None = None  # in use, by whomever
    power_w: float | None = None
    clock_mhz: int | None = None  # of its multiprocessors
    throttled: list[str] | None = None  # why its clocks are low although it has work; empty: they are not


class Gpu:
    """One GPU; a context that lets go of the library. Without a handle all its answers are None."""

    def __init__(self, handle: Any = None) -> None:
        self._handle = handle

    @classmethod
    def of(cls, uuid: str | None) -> Gpu:
        """The GPU with that identity; one that knows nothing where it cannot be asked."""
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
        """Let go of the library; a second call does nothing."""
        if self._handle is not None:
            import pynvml

            self._handle = None
            pynvml.nvmlShutdown()

    def snapshot(self) -> GpuSnapshot:
        """What it is doing."""
        return GpuSnapshot(
            busy=self._ask(lambda n, gpu: n.nvmlDeviceGetUtilizationRates(gpu).gpu / 100),
            memory_bytes=self._ask(lambda n, gpu: int(n.nvmlDeviceGetMemoryInfo(gpu).used)),
            power_w=self._ask(lambda n, gpu: n.nvmlDeviceGetPowerUsage(gpu) / 1000),
            clock_mhz=self._ask(lambda n, gpu: n.nvmlDeviceGetClockInfo(gpu, n.NVML_CLOCK_SM)),
            throttled=self._ask(lambda n, gpu: reasons(n.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))),
        )

    def facts(self) -> dict[str, Any]:
        """Driver, NUMA node, PCIe link (now and at most), power limit in watts and clocks in MHz.

        A link idles at a lower generation: what it can be is in the `_max` of both.
        """
        place = self._ask(lambda n, gpu: _text(n.nvmlDeviceGetPciInfo(gpu).busId))
        asked: dict[str, Callable[[Any, Any], Any]] = {
            "driver": lambda n, gpu: _text(n.nvmlSystemGetDriverVersion()),
            "pcie_generation": lambda n, gpu: n.nvmlDeviceGetCurrPcieLinkGeneration(gpu),
            "pcie_generation_max": lambda n, gpu: n.nvmlDeviceGetMaxPcieLinkGeneration(gpu),
            "pcie_width": lambda n, gpu: n.nvmlDeviceGetCurrPcieLinkWidth(gpu),
            "pcie_width_max": lambda n, gpu: n.nvmlDeviceGetMaxPcieLinkWidth(gpu),
            "power_limit_w": lambda n, gpu: n.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
            "clock_mhz": lambda n, gpu: n.nvmlDeviceGetClockInfo(gpu, n.NVML_CLOCK_SM),
            "clock_max_mhz": lambda n, gpu: n.nvmlDeviceGetMaxClockInfo(gpu, n.NVML_CLOCK_SM),
        }
        return {**{name: self._ask(ask) for name, ask in asked.items()}, "numa_node": numa_node(place)}

    def _ask(self, ask: Callable[[Any, Any], Any]) -> Any:
        if self._handle is None:
            return None
        import pynvml

        try:
            return ask(pynvml, self._handle)
        except pynvml.NVMLError:  # this card, or this driver, does not say
            return None


def reasons(bits: int) -> list[str]:
    """Why a GPU that has work runs below its clocks."""
    return [reason for bit, reason in THROTTLING.items() if bits & bit]


def numa_node(place: str | None) -> int | None:
    """The NUMA node of a PCI device, such as 00000000:65:00.0; None where the kernel knows none."""
    if place is None:
        return None
    domain, _, rest = place.lower().partition(":")
    try:  # NVML writes the domain with eight digits, the kernel with four
        node = int((PCI_DEVICES / f"{domain[-4:]}:{rest}" / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
