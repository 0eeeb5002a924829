"""Description of a machine, for the records measured on it."""

from __future__ import annotations

from dataclasses import dataclass, field
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
