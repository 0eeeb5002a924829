"""Devices that batches go to: the only package that uses the backend-specific APIs of torch.

torch.accelerator is used where it suffices. A backend with an API of its own has a module of its own.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from iobench.host.device._accelerator import Accelerator
from iobench.host.device._cuda import Cuda
from iobench.host.device._host import Device
from iobench.host.device._mps import Mps
from iobench.host.device._names import in_use, own_device, pick_device

if TYPE_CHECKING:
    import torch

__all__ = [
    "KINDS",
    "Accelerator",
    "Cuda",
    "Device",
    "Mps",
    "device_named",
    "device_of",
    "in_use",
    "own_device",
    "pick_device",
]

KINDS: dict[str, type[Device]] = {"cpu": Device, "cuda": Cuda, "mps": Mps}


@functools.cache
def device_of(device: torch.device) -> Device:
    """Return the API of a device, the same object for the life of the process."""
    return KINDS.get(device.type, Accelerator)(device)


def device_named(name: str) -> Device:
    """Return the API of a device by its name, such as "cuda:1"."""
    import torch

    return device_of(torch.device(name))
