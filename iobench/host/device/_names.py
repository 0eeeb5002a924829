"""Device names: the devices of this machine, the requested one, and the one in use."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from iobench.base.errors import DeviceUnavailable, InvalidSettings
from iobench.base.units import counted

if TYPE_CHECKING:
    import torch

KNOWN = ("cuda", "xpu", "mps")  # backends that are known even if this torch is built without them


def pick_device(name: str) -> torch.device:
    """Return the device of a name, such as "cuda:1"; "auto" is the accelerator, or the CPU without one.

    A name without a number is the current device, as torchrun's ranks set it.

    Raises
    ------
    InvalidSettings
        If the name is not auto, cpu or a backend of torch.
    DeviceUnavailable
        If the machine does not have the device.
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

    accelerator = torch.accelerator.current_accelerator()
    return (accelerator.type, torch.accelerator.device_count()) if accelerator else (None, 0)


def _devices(kind: str, count: int) -> str:
    return counted(count, f"{kind.upper()} device") if count else f"no {kind.upper()} device"


def _names(known: tuple[str, ...]) -> str:
    numbered = [name for kind in known for name in ((kind,) if kind == "mps" else (kind, f"{kind}:0"))]
    return ", ".join(["auto", "cpu", *numbered, "…"])
