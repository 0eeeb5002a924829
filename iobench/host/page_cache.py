"""The page cache: what makes a run cold or warm, and what proves it.

Pages that a live process maps survive every way of dropping them: close readers and workers first.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from iobench.base.errors import (
    ColdCacheUnavailable,
)
from iobench.base.thresholds import BACKED_BYTES_PER_S, COLD_LIMIT, WARM_LIMIT
from iobench.host.memory import PAGE, touched_map

MODES = ("warm", "cold")
PAUSES_S = (0.0, 0.0, 0.01, 0.1, 0.5)  # before each attempt to empty the cache
PREFAULT = 1.2  # of the bytes to be read
BACKING = (PREFAULT, 3.0, 9.0)  # of them, as long as it is slow
TELLING_BYTES = 64 << 20  # below this the rate of touching says little
PIECE_BYTES = 8 << 20
DROP_CACHES = Path("/proc/sys/vm/drop_caches")
CONTROL_GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")  # of version 2 and of version 1

_CACHESTAT = 451  # the same number on every architecture; Linux 6.5
_libc = ctypes.CDLL(None, use_errno=True)


class ResidencyUnknown(Exception):
    """The kernel does not tell this user which pages of a file are cached."""


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Stat(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cache", "dirty", "writeback", "evicted", "recently_evicted")
    )


def establish(mode: str, files: Sequence[Path], logical_bytes: int, sudo: bool = False) -> dict[str, Any]:
    """Make files cold or warm, and return how and how far, for the record of a round.

    ColdCacheUnavailable where they do not get cold or do not stay so.
    """
    state: dict[str, Any] = {"mode": mode, "read_ahead_kib": read_ahead_kib(files[0])}
    if mode == "warm":
        return {**state, "method": "read through in order", "residency": warm(files)}
    method = evict(files, sudo)
    backed = back_memory(logical_bytes)
    reached = residency(files)
    if reached > COLD_LIMIT:
        raise ColdCacheUnavailable(
            f"--cache cold: {reached:.1%} of {files[0].parent} came back into memory before the round; "
            "stop what else reads it"
        )
    return {**state, "method": method, "residency": reached, "prefault_bytes_per_s": backed}


def residency(files: Sequence[Path]) -> float:
    """The fraction of the pages of all files that is in the page cache, 0 to 1.

    Asks cachestat(2), else mincore(2). ResidencyUnknown where the kernel would not tell the truth:
    both answer only for files that one owns or may write.
    """
    cached = pages = 0
    for path in files:
        size = path.stat().st_size
        if size:
            pages += -(-size // PAGE)
            cached += _cached_pages(path, size)
    return cached / pages if pages else 0.0


def evict(files: Sequence[Path], sudo: bool = False) -> str:
    """Empty the page cache of these files, prove it, and return the way that was used.

    As root, or with `sudo` through `sudo -n`, the whole cache is dropped; else each file is
    synced and given to posix_fadvise(DONTNEED). ColdCacheUnavailable where more than 1 % stays,
    or where nobody can tell.
    """
    reached = 1.0
    for pause_s in PAUSES_S:  # pages in flight stay: try again
        time.sleep(pause_s)
        method = _drop_all(sudo) if sudo or os.access(DROP_CACHES, os.W_OK) else ""
        for path in files:
            _drop_file(path)
        try:
            reached = residency(files)
        except ResidencyUnknown as error:
            raise ColdCacheUnavailable(f"--cache cold: {error}; run as the owner of the files") from error
        if reached <= COLD_LIMIT:
            return method or "posix_fadvise"
    raise ColdCacheUnavailable(
        f"--cache cold: {reached:.1%} of the pages of {files[0].parent} stay in memory; "
        + (holders(files) or "no process maps them, so the file system may keep them there (tmpfs does)")
    )


def warm(files: Sequence[Path]) -> float | None:
    """Read all files through in order, and return their residency afterwards; None where nobody can tell.

    What is not fully resident is evicted and read again in large pieces, because pages that
    were brought in one by one stay small and are slower to copy from.
    """
    try:
        if residency(files) < WARM_LIMIT:
            for path in files:
                _drop_file(path)
            prefault(int(PREFAULT * sum(path.stat().st_size for path in files)))
        read_through(files)
        return residency(files)
    except ResidencyUnknown:
        read_through(files)
        return None


def read_through(files: Sequence[Path]) -> None:
    """Read every byte of the files, in order, in pieces of 8 MiB."""
    buffer = bytearray(PIECE_BYTES)
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def back_memory(logical_bytes: int) -> float | None:
    """Prefault what a round over so many bytes takes, and more while that is slow.

    Slow means that the host still had to back what was touched; the round's own pages would then be
    among those that it has not. Returns the rate of the first time, in bytes/s; None for none.
    """
    rates = []
    for times in BACKING:
        rates.append(prefault(int(times * logical_bytes)))
        rate = rates[-1]
        if rate is None or rate > BACKED_BYTES_PER_S or logical_bytes < TELLING_BYTES:
            break
    return rates[0]


def prefault(count: int) -> float | None:
    """Make the host back `count` bytes of memory (at most half of what we may have), then free them.

    In a virtual machine that returns free pages, the first touch of each costs more than
    reading it from disk; paid here, it is not paid inside a round. Returns bytes/s; None for none.
    """
    count = int(min(count, free_memory() // 2)) // PAGE * PAGE
    if count == 0:
        return None
    before = time.perf_counter()
    touched_map(count).close()
    return count / (time.perf_counter() - before)


def free_memory() -> float:
    """Bytes that this process may still have, by the machine and by its control groups."""
    return min(psutil.virtual_memory().available, _memory_limit())


def total_memory() -> float:
    """Bytes that all processes here may have together, by the machine and by control groups."""
    return min(psutil.virtual_memory().total, _memory_limit())


def memory_groups() -> list[Path]:
    """The folders of the control groups that account for this process's memory."""
    lines = [line.split(":", 2) for line in OWN_GROUPS.read_text().splitlines()]
    return [
        CONTROL_GROUPS / controllers / path.lstrip("/")
        for _, controllers, path in lines
        if controllers in ("", "memory")
    ]


def holders(files: Sequence[Path]) -> str:
    """Which processes map one of the files, in words; empty where none is seen."""
    wanted = {str(path.resolve()) for path in files}
    found = []
    for process in psutil.process_iter():
        try:
            if any(line.path in wanted for line in process.memory_maps()):
                found.append(f"{process.pid} ({process.name()})")
        except (psutil.Error, OSError):
            continue
    return f"process {', '.join(found)} maps them: close it" if found else ""


def read_ahead_kib(path: Path) -> int | None:
    """The read-ahead setting of the disk under `path`, in KiB; None where it has none."""
    device = os.stat(path).st_dev
    link = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    for folder in (link, link / ".."):
        setting = folder / "queue" / "read_ahead_kb"
        if setting.exists():
            return int(setting.read_text())
    return None


def _memory_limit() -> float:
    """The smallest memory limit of the control groups that hold this process: a container has one."""
    folders = {above for folder in memory_groups() for above in (folder, *folder.parents)}
    files = [folder / name for folder in folders for name in LIMIT_FILES]
    limits = [file.read_text().strip() for file in files if file.is_file()]
    return min((int(limit) for limit in limits if limit.isdecimal()), default=math.inf)


def _drop_all(sudo: bool) -> str:
    os.sync()
    if os.access(DROP_CACHES, os.W_OK):
        try:
            DROP_CACHES.write_text("3\n")
            return "drop_caches"
        except OSError as error:
            if not sudo:
                return ""  # root in a container whose /proc/sys is read-only
            raise ColdCacheUnavailable(f"--cache cold: {DROP_CACHES}: {error.strerror}") from error
    command = ["sudo", "-n", "sh", "-c", f"echo 3 > {DROP_CACHES}"]
    if shutil.which("sudo") is None:
        raise ColdCacheUnavailable("--sudo: there is no sudo here; run as root, or without --sudo")
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["refused"])[-1]
        raise ColdCacheUnavailable(f"--sudo: {reason}; run 'sudo -v' first, or run without --sudo")
    return "sudo drop_caches"


def _drop_file(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())  # dirty pages stay otherwise
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _cached_pages(path: Path, size: int) -> int:
    with open(path, "rb") as file:
        span, stat = _Range(0, size), _Stat()
        failed = _libc.syscall(_CACHESTAT, file.fileno(), ctypes.byref(span), ctypes.byref(stat), 0)
        return _mincore(path, file.fileno(), size) if failed else int(stat.cache)


def _mincore(path: Path, descriptor: int, size: int) -> int:
    if os.stat(path).st_uid != os.geteuid() and not os.access(path, os.W_OK):
        raise ResidencyUnknown(f"{path}: mincore answers only for files that you own or may write")
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == ctypes.c_void_p(-1).value:
        raise ResidencyUnknown(f"{path}: cannot be mapped")
    try:
        vector = (ctypes.c_ubyte * -(-size // PAGE))()
        if _libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), vector):
            raise ResidencyUnknown(f"{path}: mincore failed")
        return sum(page & 1 for page in bytes(vector))
    finally:
        _libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))
