"""Page tables of mapped files: what the page cache holds is mapped before a clock starts."""

from __future__ import annotations

import ctypes
from pathlib import Path

from iobench.host.memory import PAGE, cached_pages_at, libc, own_maps
from iobench.host.usable_memory import total_memory

MADV_POPULATE_READ = 22  # Linux 5.14; the mmap module has no name for it
PIECE_BYTES = 256 << 20


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
        for low in range(begin, end, PIECE_BYTES):
            size = min(PIECE_BYTES, end - low)
            if all_cached(low, size):
                libc.madvise(ctypes.c_void_p(low), ctypes.c_size_t(size), MADV_POPULATE_READ)


def all_cached(begin: int, size: int) -> bool:
    """Return whether all pages of a mapping are in the page cache."""
    return cached_pages_at(begin, size) == -(-size // PAGE)
