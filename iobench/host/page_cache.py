"""Page cache control: make a dataset cold or warm, and verify that it is.

Pages mapped by a live process cannot be dropped in any way: close readers and workers first. Before a warm
round, `map_cached` enters the cached pages into this process's page tables.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from iobench.base.errors import ColdCacheUnavailable
from iobench.base.thresholds import COLD_LIMIT, LARGER_THAN_MEMORY, WARM_LIMIT
from iobench.host.machine_info import read_ahead_kib
from iobench.host.memory import (
    PAGE,
    PREFAULT,
    back_memory,
    cached_pages_at,
    libc,
    map_memory,
    own_maps,
    prefault,
    total_memory,
    unmap_memory,
)

MODES = ("warm", "cold")
PAUSES_S = (0.0, 0.0, 0.01, 0.1, 0.5)  # before each attempt to empty the cache
WARM_BYTES = 256 << 20  # maximum touched before a warm round: reading the files touches the rest
PIECE_BYTES = 8 << 20
SAMPLED_FILES, SAMPLED_SPANS, SPAN_BYTES = 64, 64, 256 << 10
DROP_CACHES = Path("/proc/sys/vm/drop_caches")

CACHESTAT = 451  # the same number on every architecture; Linux 6.5


class ResidencyUnknown(Exception):
    """The kernel does not tell this user which pages of a file are cached."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


def establish(mode: str, files: Sequence[Path], logical_bytes: int, sudo: bool = False) -> dict[str, Any]:
    """Make all files of a dataset cold or warm, one of MODES, before a round that reads `logical_bytes`.

    Memory for them is prefaulted after an eviction. `sudo` drops the caches with `sudo -n`. Returns, for the
    round's record, mode, method, residency (0 to 1; None if unknown), read_ahead_kib and, for cold,
    prefault_bytes_per_s. Raises ColdCacheUnavailable if the files do not get cold or do not stay cold.
    """
    state: dict[str, Any] = {"mode": mode, "read_ahead_kib": read_ahead_kib(files[0])}
    if mode == "warm" and sum(path.stat().st_size for path in files) > total_memory():
        state |= {"method": LARGER_THAN_MEMORY, "residency": None}
        with suppress(ResidencyUnknown):
            state["residency"] = residency(files, sampled=True)
        return state
    if mode == "warm":
        return {**state, "method": "read through in order", "residency": warm(files)}
    method = evict(files, sudo)
    backed = back_memory(logical_bytes)
    reached = residency(files)
    if reached > COLD_LIMIT:
        raise ColdCacheUnavailable(
            "--cache cold: pages came back into the page cache before the round",
            kind="cache-refilled",
            path=files[0].parent,
            expected=f"at most {COLD_LIMIT:.0%} resident",
            found=f"{reached:.1%}",
            hint="stop the other process that reads this dataset",
        )
    return {**state, "method": method, "residency": reached, "prefault_bytes_per_s": backed}


def residency(files: Sequence[Path], sampled: bool = False) -> float:
    """Return the fraction of the files' pages that are in the page cache, 0 to 1.

    Uses cachestat(2), or else mincore(2). Both answer only for files that the user owns or may write;
    for others it raises ResidencyUnknown. Both take 20 ns per page, 0.1 s for 20 GiB; `sampled` bounds that:
    it looks at SAMPLED_FILES files at most, and in each at SAMPLED_SPANS spans, evenly spaced.
    """
    cached = pages = 0
    for path in files[:: -(-len(files) // SAMPLED_FILES)] if sampled and files else files:
        size = path.stat().st_size
        if spans := sampled_spans(size) if sampled else [(0, size)] if size else []:
            pages += sum(-(-length // PAGE) for _, length in spans)
            cached += cached_pages(path, spans)
    return cached / pages if pages else 0.0


def sampled_spans(size: int) -> list[tuple[int, int]]:
    """Return start and length of the sampled spans of a file."""
    if size <= SAMPLED_SPANS * SPAN_BYTES:
        return [(0, size)] if size else []
    last = (size - SPAN_BYTES) // PAGE
    return [(last * n // (SAMPLED_SPANS - 1) * PAGE, SPAN_BYTES) for n in range(SAMPLED_SPANS)]


def evict(files: Sequence[Path], sudo: bool = False) -> str:
    """Evict files from the page cache, verify it, and return the method used.

    As root, or with `sudo` by `sudo -n`, the whole page cache is dropped. Otherwise each file is synced
    and evicted by posix_fadvise(DONTNEED). Raises ColdCacheUnavailable if more than COLD_LIMIT of the pages
    stay, if residency cannot be verified, or if sudo refuses.
    """
    reached = 1.0
    for pause_s in PAUSES_S:  # pages under IO cannot be evicted: try again
        time.sleep(pause_s)
        method = _drop_all(sudo) if sudo or os.access(DROP_CACHES, os.W_OK) else ""
        for path in files:
            _drop_file(path)
        try:
            reached = residency(files)
        except ResidencyUnknown as error:
            raise ColdCacheUnavailable(
                f"--cache cold cannot be verified: {error.reason}",
                kind="residency-unknown",
                path=error.path,
                hint="run as the owner of the files",
            ) from error
        if reached <= COLD_LIMIT:
            return method or "posix_fadvise"
    mapping = mapped_by(files)
    raise ColdCacheUnavailable(
        "--cache cold: pages stay in the page cache",
        kind="pages-mapped" if mapping else "still-resident",
        path=files[0].parent,
        expected=f"at most {COLD_LIMIT:.0%} resident",
        found=f"{reached:.1%}",
        hint=f"close process {', '.join(mapping)}, which maps them"
        if mapping
        else "move it to another file system: this one may keep files in memory, as tmpfs does",
    )


def warm(files: Sequence[Path]) -> float | None:
    """Read all files in order; return their residency afterwards, or None if it is unknown.

    Files that are not resident are evicted first and read in large pieces: pages that were read one by one
    stay small, and are slower to copy from. Of files of which each page is resident nothing is read.
    """
    try:
        reached = residency(files)
        if reached < WARM_LIMIT:
            for path in files:
                _drop_file(path)
            prefault(min(WARM_BYTES, int(PREFAULT * sum(path.stat().st_size for path in files))))
        if reached == 1.0:
            return reached
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


def mapped_by(files: Sequence[Path]) -> list[str]:
    """Return the processes that map one of the files, each as "PID (NAME)", as far as visible."""
    paths = {str(path.resolve()) for path in files}
    processes = []
    for process in psutil.process_iter():
        try:
            if any(line.path in paths for line in process.memory_maps()):
                processes.append(f"{process.pid} ({process.name()})")
        except (psutil.Error, OSError):
            continue
    return processes


def _drop_all(sudo: bool) -> str:
    os.sync()
    if os.access(DROP_CACHES, os.W_OK):
        try:
            DROP_CACHES.write_text("3\n")
            return "drop_caches"
        except OSError as error:
            if not sudo:
                return ""  # root in a container whose /proc/sys is read-only
            raise ColdCacheUnavailable(
                f"--cache cold: the page cache cannot be dropped: {error.strerror}", path=DROP_CACHES
            ) from error
    command = ["sudo", "-n", "sh", "-c", f"echo 3 > {DROP_CACHES}"]
    if shutil.which("sudo") is None:
        raise ColdCacheUnavailable(
            "--sudo: sudo is not installed", kind="no-sudo", hint="run as root, or without --sudo"
        )
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["refused"])[-1]
        raise ColdCacheUnavailable(
            "--sudo failed",
            kind="sudo-refused",
            found=reason,
            hint="run 'sudo -v' first, or run without --sudo",
        )
    return "sudo drop_caches"


def _drop_file(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())  # dirty pages stay otherwise
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached_pages(path: Path, spans: Sequence[tuple[int, int]]) -> int:
    """Return how many pages of a file's spans, each a page's start and bytes, are in the page cache."""
    cached, counts = 0, (ctypes.c_uint64 * 5)()  # struct cachestat, which begins with the cached pages
    # once: it takes longer than to ask for a span; a file object is closed wherever Ctrl-C comes
    with open(path, "rb", buffering=0) as file:
        for start, size in spans:
            span = (ctypes.c_uint64 * 2)(start, size)
            failed = libc.syscall(CACHESTAT, file.fileno(), ctypes.byref(span), ctypes.byref(counts), 0)
            cached += _mincore(path, file.fileno(), start, size) if failed else counts[0]
    return cached


def _mincore(path: Path, descriptor: int, start: int, size: int) -> int:
    if os.stat(path).st_uid != os.geteuid() and not os.access(path, os.W_OK):
        raise ResidencyUnknown(path, "mincore answers only for files that you own or may write")
    try:
        address = map_memory(None, size, mmap.MAP_SHARED, descriptor, start)
    except OSError as error:
        raise ResidencyUnknown(path, "the file cannot be mapped") from error
    try:
        if (cached := cached_pages_at(address, size)) is None:
            raise ResidencyUnknown(path, "mincore failed")
        return cached
    finally:
        unmap_memory(address, size)


MADV_POPULATE_READ = 22  # Linux 5.14; the mmap module has no name for it
MAPPED_PIECE_BYTES = 256 << 20


def map_cached(path: Path) -> None:
    """Map the cached pages of a file or folder into the maps that this process has of it.

    The first access to a part of a map is a page fault of some microseconds, which maps its neighbors, too.
    A script that keeps its files open has them in its first epoch only. Random rows have most of theirs at
    the head of an epoch: 20 times as many per sample in 200 batches as in the whole epoch over 1 GiB.
    Pieces of which a page is not cached are left as they are, as is everything where the maps exceed the
    memory, or the kernel cannot do it.
    """
    own = str(path.resolve())
    maps = [(begin, end) for begin, end, file in own_maps() if file == own or file.startswith(f"{own}/")]
    if sum(end - begin for begin, end in maps) > total_memory():
        return
    for begin, end in maps:
        for low in range(begin, end, MAPPED_PIECE_BYTES):
            size = min(MAPPED_PIECE_BYTES, end - low)
            if all_cached(low, size):
                libc.madvise(ctypes.c_void_p(low), ctypes.c_size_t(size), MADV_POPULATE_READ)


def all_cached(begin: int, size: int) -> bool:
    """Return whether all pages of a mapping are in the page cache."""
    return cached_pages_at(begin, size) == -(-size // PAGE)
