"""Description of a machine, its background load, and snapshots of it, for the records measured on it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class MachineDisk:
    """The disk under the data; `remote` if it is a network or user-space file system."""

    file_system: str | None = None
    device: str | None = None
    model: str | None = None
    read_ahead_kib: int | None = None
    remote: bool = False
    mount_options: str = ""  # of a remote one

    def __str__(self) -> str:
        ahead = "" if self.read_ahead_kib is None else f", read-ahead {self.read_ahead_kib} KiB"
        options = f" ({self.mount_options})" if self.mount_options else ""
        return f"{self.file_system} on {self.model or self.device}{options}{ahead}"


@dataclass(frozen=True, kw_only=True)
class MachineGpu:
    """The device that received the data."""

    name: str
    memory_bytes: int | None = None
    cuda: str | None = None
    driver: str | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine of a measurement."""

    cpu: str
    disk: MachineDisk
    host: str = ""
    cores: int | None = None
    usable_cores: int | None = None
    memory_bytes: int = 0
    kernel: str = ""
    python: str = ""
    gpu: MachineGpu | None = None
    versions: dict[str, str] = field(default_factory=dict)
    commit: str | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """All that describes it, by name: its parts, and the releases of libraries."""
        parts = {**asdict(self), "memory_bytes": f"{self.memory_bytes / 2**30:.0f} GiB"}
        parts["gpu"] = self.gpu and (self.gpu.name, self.gpu.cuda, self.gpu.driver)
        disk, versions = parts.pop("disk"), parts.pop("versions")
        return {**parts, **{f"disk {name}": disk[name] for name in disk}, **versions}


@dataclass(frozen=True, kw_only=True)
class BackgroundLoad:
    """Load of other processes over an interval; None where the kernel keeps no such account.

    `processors` and `steal` are shares of the time of the processors that this process may use. The stalled
    values are shares of the interval in which some task, of iobench or not, waited for that resource
    (pressure stall information, the kernel's Documentation/accounting/psi.rst).
    """

    processors: float | None = None  # used by other processes
    steal: float | None = None  # given to other virtual machines by the hypervisor
    disk_bytes_per_s: float | None = None  # read by other processes from the disk under the data
    cpu_stalled: float | None = None
    io_stalled: float | None = None
    memory_stalled: float | None = None


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """State of the machine over one second; None where unknown."""

    time: float  # seconds since 1970
    cores: list[float]  # busy share of each core, 0 to 1
    iowait: float  # share of all processors' time
    disk_bytes_per_s: float | None = None  # None, as the next, if the data are not on a disk
    disk_queue: float | None = None  # mean number of requests in flight
    gpu: float | None = None  # busy share, 0 to 1; None, as the next, without a GPU
    gpu_memory_bytes: int | None = None
    gpu_power_w: float | None = None
    gpu_clock_mhz: int | None = None
    gpu_throttled: list[str] | None = None  # reasons for reduced clocks under load
