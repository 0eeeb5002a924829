"""Host memory → device."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from iobench.errors import DeviceUnavailable, InvalidSettings

HostBatch: TypeAlias = Any  # dict[str, Tensor], or a tensorclass of the same fields
DeviceBatch = dict[str, torch.Tensor]


def pick_device(name: str) -> torch.device:
    """The device of that name; `auto` is CUDA where there is one, else the CPU.

    InvalidSettings where it is not auto, cpu, cuda or cuda:N; DeviceUnavailable where it is not here.
    """
    kind, colon, index = name.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (colon and (kind != "cuda" or not index.isdecimal())):
        raise InvalidSettings(f"unknown device {name!r}; known: auto, cpu, cuda, cuda:0, cuda:1, …")
    count = torch.cuda.device_count()
    if kind == "auto":
        return torch.device("cuda:0" if count else "cpu")
    if kind == "cuda" and int(index or 0) >= count:
        here = f"{count} CUDA device{'s' * (count > 1)}" if count else "no CUDA device"
        raise DeviceUnavailable(f"--device {name}: there is {here} here; use --device cpu or auto")
    return torch.device("cpu") if kind == "cpu" else torch.device("cuda", int(index or 0))


class HostToDevice:
    """Moves host batches to a device: identity on the CPU, one `.to` per tensor on CUDA.

    Every batch that enters is either fresh or pageable, so no buffer is reused while a
    non-blocking copy may still read it: torch's pinned allocator keeps freed blocks until then.
    """

    def __init__(self, device: torch.device, non_blocking: bool) -> None:
        self.device = device
        self._non_blocking = non_blocking

    def move(self, batch: HostBatch) -> DeviceBatch:
        """The batch on the device; on CUDA the copies may still be under way."""
        if self.device.type == "cpu":
            return dict(batch.items())
        moved = (
            {name: t.to(self.device, non_blocking=self._non_blocking) for name, t in batch.items()}
            if isinstance(batch, dict)
            else batch.to(self.device, non_blocking=self._non_blocking)
        )
        return dict(moved.items())

    def synchronize(self) -> None:
        """Wait until everything asked of the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def reset_peak(self) -> None:
        """Forget the device's peak memory."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak_bytes(self) -> tuple[int, int] | None:
        """Most memory (allocated, reserved) on the device since `reset_peak`; None on the CPU."""
        if self.device.type != "cuda":
            return None
        return torch.cuda.max_memory_allocated(self.device), torch.cuda.max_memory_reserved(self.device)
