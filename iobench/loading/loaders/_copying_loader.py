"""Base class of loaders whose batches the consumer copies to the device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from iobench.base.errors import InvalidSettings
from iobench.base.options import option
from iobench.host.device import device_named
from iobench.loading.loaders._loader import Loader

Self = TypeVar("Self", bound="CopyingLoader")


@dataclass(frozen=True)
class CopyingLoader(Loader):
    """A loader whose batches the consumer copies to the device."""

    pin_memory: bool | None = option(None, "batches in pinned memory; by default on with an accelerator")
    non_blocking: bool | None = option(None, "copy to the device without waiting; by default as pin_memory")

    def on(self: Self, device: str) -> Self:
        """Return it with pinning and non-blocking copies resolved for a device."""
        accelerated = device != "cpu" and device_named(device).pins
        pin, non_blocking = self.pin_memory, self.non_blocking
        if not accelerated and (pin or non_blocking):
            raise InvalidSettings(
                f"{self.variant}: pinned memory and non-blocking copies",
                kind="no-pinned-memory",
                expected="an accelerator that can pin memory",
                found=f"device {device}",
            )
        pin = accelerated if pin is None else pin
        changes: dict[str, Any] = {
            "pin_memory": pin,
            "non_blocking": pin if non_blocking is None else non_blocking,
        }
        return replace(self, **changes)

    def pins(self, device: str) -> bool:
        """Return the option `pin_memory`."""
        return bool(self.pin_memory)

    @property
    def copies_without_blocking(self) -> bool:
        """The option `non_blocking`."""
        return bool(self.non_blocking)
