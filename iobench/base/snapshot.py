"""State of the machine at a moment."""

from __future__ import annotations

from dataclasses import dataclass


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
