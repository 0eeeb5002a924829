"""Description of the machine and of the disk under a path, as the kernel describes it."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from iobench.base.machine import Machine, MachineDisk, MachineGpu
from iobench.base.text import printable
from iobench.host.device import device_named

LIBRARIES = ("iobench", "torch", "numpy")  # every result depends on these


def describe(data_dir: Path, device: str, libraries: Iterable[str] = ()) -> Machine:
    """Return CPU, memory, kernel, disk under `data_dir`, device, and library versions.

    Versions are those of LIBRARIES and of `libraries`.
    """
    return Machine(
        host=printable(platform.node()),
        cpu=_cpu_model(),
        cores=os.cpu_count(),
        usable_cores=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        kernel=platform.release(),
        python=platform.python_version(),
        disk=describe_disk(data_dir),
        gpu=_gpu(device),
        versions=_versions((*LIBRARIES, *sorted(libraries))),
        commit=_commit(),
    )


def _versions(libraries: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages that are installed."""
    versions = {}
    for name in libraries:
        with contextlib.suppress(metadata.PackageNotFoundError):  # a plug-in may name one that does not exist
            versions[name] = metadata.version(name)
    return versions


@functools.lru_cache
def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpu(device: str) -> MachineGpu | None:
    """Return the identity of a device; None for the CPU, without importing torch."""
    identity = None if device == "cpu" else device_named(device).identity()
    if identity is None:
        return None
    named = {spec.name: identity.pop(spec.name) for spec in fields(MachineGpu) if spec.name in identity}
    return MachineGpu(**named, details=identity)


@functools.lru_cache
def _commit() -> str | None:
    """Return iobench's commit if it runs from a checkout, else None."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


# of other machines; those of programs are named fuse or fuse.PROGRAM
NETWORK = frozenset(
    "9p afs beegfs ceph cifs glusterfs gpfs lustre nfs nfs4 orangefs smb3 smbfs virtiofs wekafs".split()
)


def describe_disk(path: Path) -> MachineDisk:
    """Return file system, device, model and readahead setting of the disk under a path.

    For a network or user-space file system (`remote`) also its mount options, without paths and names.
    """
    mount = _mount(path)
    remote = mount is not None and _is_remote(mount)
    return MachineDisk(
        file_system=mount.fstype if mount else None,
        device=printable(mount.device) if mount else None,
        model=_model(path),
        read_ahead_kib=read_ahead_kib(path),
        remote=remote,
        mount_options=_public(mount.opts) if mount and remote else "",
    )


def is_remote(path: Path) -> bool:
    """Return True on a network or user-space file system, where each read waits for another program."""
    if block_device(path).exists():
        return False
    mount = _mount(path)
    return mount is not None and _is_remote(mount)


def read_ahead_kib(path: Path) -> int | None:
    """Return the readahead setting of the disk or file system under `path` in KiB; None if it has none."""
    disk = block_device(path)
    mounted = Path("/sys/class/bdi", disk.name, "read_ahead_kb")
    for setting in (disk / "queue/read_ahead_kb", disk / "../queue/read_ahead_kb", mounted):
        if setting.exists():
            return int(setting.read_text())
    return None


def block_device(path: Path) -> Path:
    """Return the kernel's folder of the device under a path, which exists if that is a disk."""
    number = os.stat(path).st_dev
    return Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")


def _mount(path: Path) -> Any:
    """Return psutil's entry of the file system that holds a path; None if there is none."""
    resolved = str(path.resolve())
    mounts = [
        part
        for part in psutil.disk_partitions(all=True)
        if resolved == part.mountpoint or resolved.startswith(part.mountpoint.rstrip("/") + "/")
    ]
    return max(mounts, key=lambda part: len(part.mountpoint), default=None)


def _is_remote(mount: Any) -> bool:
    return mount.fstype in NETWORK or mount.fstype.partition(".")[0] == "fuse"


def _public(options: str) -> str:
    """Return mount options without those that hold paths, addresses, or names of users."""
    hidden = ("user", "group", "pass", "cred", "domain", "addr", "clientaddr", "mountaddr", "secret")
    return printable(
        ",".join(one for one in options.split(",") if "/" not in one and not one.startswith(hidden))
    )


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
