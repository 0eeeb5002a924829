"""Description of the machine, for the records measured on it."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from iobench.base.text import printable
from iobench.host import page_cache

LIBRARIES = ("iobench", "torch", "numpy")  # every result depends on these


def describe(data_dir: Path, device: str, libraries: Iterable[str] = ()) -> dict[str, Any]:
    """Return CPU, memory, kernel, disk under `data_dir`, device, and library versions, as for a record.

    Versions are those of LIBRARIES and of `libraries`.
    """
    return {
        "host": printable(platform.node()),
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
    """Return the versions of the packages that are installed."""
    versions = {}
    for name in libraries:
        with contextlib.suppress(metadata.PackageNotFoundError):  # a plug-in may name one that does not exist
            versions[name] = metadata.version(name)
    return versions


def disk(path: Path) -> dict[str, Any]:
    """Return file system, device, model and readahead setting of the disk under a path."""
    resolved = str(path.resolve())
    mounts = [
        part
        for part in psutil.disk_partitions(all=True)
        if resolved == part.mountpoint or resolved.startswith(part.mountpoint.rstrip("/") + "/")
    ]
    mount = max(mounts, key=lambda part: len(part.mountpoint), default=None)
    return {
        "file_system": mount.fstype if mount else None,
        "device": printable(mount.device) if mount else None,
        "model": _disk_model(path),
        "read_ahead_kib": page_cache.read_ahead_kib(path),
    }


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
    """Return the identity of a device; None for the CPU, without importing torch."""
    if device == "cpu":
        return None
    import torch

    from iobench.host.device import device_of

    return device_of(torch.device(device)).identity()


@functools.lru_cache
def _commit() -> str | None:
    """Return iobench's commit if it runs from a checkout, else None."""
    here = Path(__file__).parent
    if not (here.parent / ".git").exists():
        return None
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
