"""The disk under a path, as the kernel describes it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil

from iobench.base.text import printable


def describe(path: Path) -> dict[str, Any]:
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
        "model": _model(path),
        "read_ahead_kib": read_ahead_kib(path),
    }


def read_ahead_kib(path: Path) -> int | None:
    """Return the readahead setting of the disk under `path` in KiB, or None if it has none."""
    for folder in (block_device(path), block_device(path) / ".."):
        setting = folder / "queue" / "read_ahead_kb"
        if setting.exists():
            return int(setting.read_text())
    return None


def block_device(path: Path) -> Path:
    """Return the kernel's folder of the device under a path, which exists if that is a disk."""
    number = os.stat(path).st_dev
    return Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")


def _model(path: Path) -> str | None:
    link = block_device(path)
    if not link.exists():
        return None
    block = link.resolve()
    for folder in (block, block.parent):
        model = folder / "device" / "model"
        if model.exists():
            return model.read_text().strip()
    driver = block / "device" / "driver"
    return driver.resolve().name if driver.exists() else None
