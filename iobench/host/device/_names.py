"""Devices by name: which there are here, which one is meant, and which one is in use."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from iobench.base.errors import (
    DeviceUnavailable,
    InvalidSettings,
)
from iobench.base.units import counted

if TYPE_CHECKING:
    import torch

KNOWN = ("cuda", "xpu", "mps")  # back ends that are named even where this torch was built without them


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
