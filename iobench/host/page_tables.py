"""Page tables of mapped files: what the page cache holds is mapped before a clock starts."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

from iobench.host.memory import PAGE, libc
from iobench.host.page_cache import total_memory

MADV_POPULATE_READ = 22  # Linux 5.14; the mmap module has no name for it
PIECE_BYTES = 256 << 20
MAP = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r\S+ \S+ \S+ \d+ +(.+)")


def map_cached(path: Path) -> None:
    """Map the cached pages of a file or folder into the maps that this process has of it.

    The first access to a part of a map is a page fault of some microseconds, which maps its neighbors, too.
    A script that keeps its files open has them in its first epoch only. Random rows have most of theirs at
    the head of an epoch: 20 times as many per sample in 200 batches as in the whole epoch over 1 GiB.
    Pieces of which a page is not cached are left as they are, as is everything where the maps exceed the
    memory, or the kernel cannot do it.
    """
    maps = list(_maps_of(str(path.resolve())))
    if sum(end - begin for begin, end in maps) > total_memory():
        return
    for begin, end in maps:
        for low in range(begin, end, PIECE_BYTES):
            size = min(PIECE_BYTES, end - low)
            if _all_cached(low, size):
                libc.madvise(ctypes.c_void_p(low), ctypes.c_size_t(size), MADV_POPULATE_READ)


def _maps_of(path: str) -> Iterator[tuple[int, int]]:
    """Yield begin and end of this process's readable maps of a file, or of files in a folder."""
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        found = MAP.fullmatch(line)
        if found and (found[3] == path or found[3].startswith(f"{path}/")):
            yield int(found[1], 16), int(found[2], 16)


def _all_cached(begin: int, size: int) -> bool:
    vector = (ctypes.c_ubyte * -(-size // PAGE))()
    failed = libc.mincore(ctypes.c_void_p(begin), ctypes.c_size_t(size), vector)
    return not failed and all(page & 1 for page in bytes(vector))
