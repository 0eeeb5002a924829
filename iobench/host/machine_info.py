"""What this machine is: the part of a record that says where it was measured."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from iobench.host import page_cache

SECTOR_BYTES = 512  # in the kernel's accounts, whatever the disk's own are
LIBRARIES = ("iobench", "torch", "numpy")  # what every figure depends on


def describe(data_dir: Path, device: str, libraries: Iterable[str] = ()) -> dict[str, Any]:
    """CPU, memory, kernel, disk under `data_dir`, the device, and versions of LIBRARIES and `libraries`."""
    return {
        "host": platform.node(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "disk": disk(data_dir),
        "gpu": _gpu(device),
        "versions": _versions((*LIBRARIES, *sorted(libraries))),
        "commit": _commit(),
    }


def _versions(libraries: Iterable[str]) -> dict[str, str]:
    """The versions of those packages that are installed."""
    found = {}
    for name in libraries:
        with contextlib.suppress(metadata.PackageNotFoundError):  # a plug-in may name none
            found[name] = metadata.version(name)
    return found


def disk(path: Path) -> dict[str, Any]:
    """File system, device, model and read-ahead of what lies under a path."""
    resolved = str(path.resolve())
    mounts = [
        part
        for part in psutil.disk_partitions(all=True)
        if resolved == part.mountpoint or resolved.startswith(part.mountpoint.rstrip("/") + "/")
    ]
    mount = max(mounts, key=lambda part: len(part.mountpoint), default=None)
    return {
        "file_system": mount.fstype if mount else None,
        "device": mount.device if mount else None,
        "model": _disk_model(path),
        "read_ahead_kib": page_cache.read_ahead_kib(path),
    }


@dataclass(frozen=True)
class DiskCounters:
    """What a disk has done since the machine started."""

    read_bytes: int
    queued_ms: int  # of all requests together, waiting or served


def disk_counters(path: Path) -> DiskCounters | None:
    """The kernel's account of the disk under a path; None where it lies on none, or nothing is there.

    Fields as in the kernel's Documentation/block/stat.rst.
    """
    try:
        number = os.stat(path).st_dev
        fields = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat").read_text().split()
    except OSError:
        return None
    return DiskCounters(int(fields[2]) * SECTOR_BYTES, int(fields[10]))


def _disk_model(path: Path) -> str | None:
    number = os.stat(path).st_dev
    link = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not link.exists():
        return None
    block = link.resolve()
    for folder in (block, block.parent):
        model = folder / "device" / "model"
        if model.exists():
            return model.read_text().strip()
    driver = block / "device" / "driver"
    return driver.resolve().name if driver.exists() else None


@functools.lru_cache
def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpu(device: str) -> dict[str, Any] | None:
    """What the device is; None of the host, for which torch is not loaded."""
    if device == "cpu":
        return None
    import torch

    from iobench.host.device import device_of

    return device_of(torch.device(device)).identity()


@functools.lru_cache
def _commit() -> str | None:
    """The commit of iobench itself, where it runs from its own checkout."""
    here = Path(__file__).parent
    if not (here.parent / ".git").exists():
        return None
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
