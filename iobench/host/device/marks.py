"""Moments in time, of the host or of a device's stream, and the seconds between them."""

from __future__ import annotations

import time
from typing import Any, Protocol


class Mark(Protocol):
    """A place in what was asked of a device, and the time at which the device got there."""

    def reached(self) -> bool:
        """Whether everything before it is done."""

    def seconds_since(self, earlier: Any) -> float:
        """From another mark of the same kind to this one, both of them reached."""


class HostMark:
    """A moment of the host's: what was asked of the host before it is done."""

    def __init__(self) -> None:
        self._at = time.perf_counter()

    def reached(self) -> bool:
        """Whether everything before it is done."""
        return True

    def seconds_since(self, earlier: HostMark) -> float:
        """From another mark to this one."""
        return self._at - earlier._at


class DeviceMark:
    """A recorded event of a device that keeps time; never recorded again."""

    def __init__(self, event: Any) -> None:
        self._event = event

    def reached(self) -> bool:
        """Whether the device is through with everything before it."""
        return bool(self._event.query())

    def seconds_since(self, earlier: DeviceMark) -> float:
        """From another mark to this one, by the device's clock."""
        return float(earlier._event.elapsed_time(self._event)) / 1e3
