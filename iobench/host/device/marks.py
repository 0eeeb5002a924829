"""Time marks on the host or in a device's stream, and the seconds between them."""

from __future__ import annotations

import time
from typing import Any, Protocol


class Mark(Protocol):
    """A position in a device's queue of work, and the time at which the device reached it."""

    def reached(self) -> bool:
        """Return True if all work before the mark is done."""

    def seconds_since(self, earlier: Any) -> float:
        """Return the seconds from another mark of the same kind to this one; both must be reached."""


class HostMark:
    """A point in time on the host, reached as soon as it is made."""

    def __init__(self) -> None:
        self._at = time.perf_counter()

    def reached(self) -> bool:
        """Return True."""
        return True

    def seconds_since(self, earlier: HostMark) -> float:
        """Return the seconds from another mark to this one."""
        return self._at - earlier._at


class DeviceMark:
    """A recorded timing event of a device, never recorded again."""

    def __init__(self, event: Any) -> None:
        self._event = event

    def reached(self) -> bool:
        """Return True if the device has finished all work before the mark."""
        return bool(self._event.query())

    def seconds_since(self, earlier: DeviceMark) -> float:
        """Return the seconds from another mark to this one, by the device's clock."""
        return float(earlier._event.elapsed_time(self._event)) / 1e3
