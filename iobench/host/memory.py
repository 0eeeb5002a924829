"""Memory of this process: huge pages, touched or untouched, maps of files, and how much it may use."""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil

from iobench.base.thresholds import BACKED_BYTES_PER_S

Bytes = npt.NDArray[np.uint8]

SHARED_MEMORY = Path("/dev/shm")
PAGE = mmap.PAGESIZE
HUGE_PAGE = 2 << 20

MAP_NORESERVE = 0x4000  # the mmap module has no name for it
MADV_POPULATE_WRITE = 23  # Linux 5.14; the mmap module has no name for it
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
MAP_FAILED = ctypes.c_void_p(-1).value


def touched_map(count: int) -> mmap.mmap:
    """Map `count` bytes of anonymous memory, page-aligned, with every page touched.

    The first touch of a page costs more than filling it, up to 13 µs in a virtual machine whose host has to
    provide it first. Reads past the page cache are faster into huge pages, because a request over many
    small pages is split: 2.9 GB/s against 2.1 GB/s in reads of 4 MiB.
    """
    memory = _anonymous(count)
    array = np.frombuffer(memory, np.uint8)
    place, size = ctypes.c_void_p(address_of(array)), ctypes.c_size_t(len(array))
    # holds no GIL, which `mmap.madvise` would hold
    if libc.madvise(place, size, MADV_POPULATE_WRITE):
        if (code := ctypes.get_errno()) != errno.EINVAL:
            raise OSError(code, os.strerror(code))
        array[::PAGE] = 0  # an older kernel
    return memory


def _anonymous(count: int, flags: int = 0) -> mmap.mmap:
    """Map at least a page of anonymous memory, in huge pages if possible."""
    memory = mmap.mmap(-1, max(count, PAGE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags)
    if (huge := getattr(mmap, "MADV_HUGEPAGE", None)) is not None:
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(huge)
    return memory


def touched_array(count: int) -> Bytes:
    """Return `count` bytes of touched memory as uint8; unmapped when the last view is gone."""
    return np.frombuffer(touched_map(_in_huge_pages(count)), np.uint8)[:count]


def untouched_array(count: int) -> Bytes:
    """Return `count` bytes of zeros as uint8, which the kernel provides page by page on first touch.

    May be larger than the machine's memory, as long as no more than that is touched.
    """
    return np.frombuffer(_anonymous(_in_huge_pages(count), MAP_NORESERVE), np.uint8)[:count]


def _in_huge_pages(count: int) -> int:
    """Return `count` bytes rounded up to huge pages, unless most of one would be left over."""
    return -(-count // HUGE_PAGE) * HUGE_PAGE if count > HUGE_PAGE // 2 else count


def whole_pages(size: int) -> int:
    """Return a number of bytes rounded up to whole pages."""
    return -(-size // PAGE) * PAGE


def address_of(array: Bytes) -> int:
    """Return the address of an array's first byte."""
    return int(array.__array_interface__["data"][0])


def file_behind(address: int) -> str | None:
    """Return the file mapped at an address of this process, or None for memory without a file.

    Memory shared between processes (memfd, /dev/shm) has a name as well, but counts as memory.
    """
    for start, end, path in own_maps():
        if start <= address < end:
            shared = path.startswith(("/dev/shm/", "/memfd:", "/dev/zero", "/torch_"))
            return path if path.startswith("/") and not shared else None
    return None


def own_maps() -> Iterator[tuple[int, int, str]]:
    """Yield start, end and file of this process's maps; the file is empty for anonymous memory."""
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        span, _, _, _, _, *path = line.split(maxsplit=5)
        start, _, end = span.partition("-")
        yield int(start, 16), int(end, 16), path[0] if path else ""


def map_memory(
    address: int | None,
    count: int,
    flags: int,
    descriptor: int = -1,
    offset: int = 0,
    *,
    writable: bool = False,
) -> int:
    """Map memory, or a file from an offset on; return the address. OSError if that fails."""
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    mapped = libc.mmap(address, count, access, flags, descriptor, offset)
    if mapped == MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"mapping {count} bytes: {os.strerror(code)}")
    return int(mapped)


def unmap_memory(address: int, count: int) -> None:
    """Unmap a range of memory."""
    libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(count))


def cached_pages_at(address: int, count: int) -> int | None:
    """Return how many pages of a mapped file the page cache holds; None if the kernel does not tell."""
    vector = (ctypes.c_ubyte * -(-count // PAGE))()
    if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(count), vector):
        return None
    return sum(page & 1 for page in bytes(vector))


CONTROL_GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")  # of version 2 and of version 1
PREFAULT = 1.2  # times the bytes to be read
BACKING = (PREFAULT, 3.0, 9.0)  # times them, one after the other as long as touching is slow
MIN_RATED_BYTES = 64 << 20  # for less, the rate of touching memory says little


def free_memory() -> float:
    """Return the bytes that this process may still allocate, by the machine and its control groups."""
    return min(psutil.virtual_memory().available, _memory_limit())


def total_memory() -> float:
    """Return the bytes of the machine's memory, or of the control groups' limit if that is lower."""
    return min(psutil.virtual_memory().total, _memory_limit())


def shared_memory() -> tuple[int, int]:
    """Return the bytes in use of shared memory, where workers put tensors, and all of them; 0 without any."""
    try:
        disk = os.statvfs(SHARED_MEMORY)
    except OSError:
        return 0, 0
    return (disk.f_blocks - disk.f_bfree) * disk.f_frsize, disk.f_blocks * disk.f_frsize


def memory_groups() -> list[Path]:
    """Return the folders of the control groups that account for this process's memory."""
    lines = [line.split(":", 2) for line in OWN_GROUPS.read_text().splitlines()]
    return [
        CONTROL_GROUPS / controllers / path.lstrip("/")
        for _, controllers, path in lines
        if controllers in ("", "memory")
    ]


def _memory_limit() -> float:
    """Return the lowest memory limit, in bytes, of this process's control groups; inf without one."""
    folders = {above for folder in memory_groups() for above in (folder, *folder.parents)}
    files = [folder / name for folder in folders for name in LIMIT_FILES]
    limits = [file.read_text().strip() for file in files if file.is_file()]
    return min((int(limit) for limit in limits if limit.isdecimal()), default=math.inf)


def back_memory(logical_bytes: int) -> float | None:
    """Prefault memory for a round over `logical_bytes`, and more of it as long as that is slow.

    Slow touching means that the hypervisor still had to back the pages, and would have to back the
    round's own, too. Returns the first rate in bytes/s, or None if nothing was touched.
    """
    rates = []
    for times in BACKING:
        rates.append(prefault(int(times * logical_bytes)))
        rate = rates[-1]
        if rate is None or rate > BACKED_BYTES_PER_S or logical_bytes < MIN_RATED_BYTES:
            break
    return rates[0]


def prefault(count: int) -> float | None:
    """Touch `count` bytes of memory, at most half of the free memory, then release them.

    In a virtual machine that returns free pages to its host, the first touch of a page costs more than
    reading it from disk. Paid here, it is not part of a round. Returns bytes/s, or None if nothing was
    touched.
    """
    count = int(min(count, free_memory() // 2)) // PAGE * PAGE
    if count == 0:
        return None
    before = time.perf_counter()
    touched_map(count).close()
    return count / (time.perf_counter() - before)
