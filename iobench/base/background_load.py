"""Load of other processes on the machine during a measurement."""

from __future__ import annotations

from dataclasses import dataclass


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
