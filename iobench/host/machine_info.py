"""Description of the machine, for the records measured on it."""

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

import psutil

from iobench.base.machine import Machine, MachineGpu
from iobench.base.text import printable
from iobench.host import disk
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
        disk=disk.describe(data_dir),
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
    here = Path(__file__).parent
    if not (here.parent / ".git").exists():
        return None
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
