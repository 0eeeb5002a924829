"""Small file systems in a mount namespace of this process, a child: a disk that can be filled."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18  # of <sched.h> and <sys/mount.h>


@cache
def mounts_permitted() -> bool:
    """Return whether this user may mount in a namespace of its own; print that once where not."""
    done = subprocess.run(["unshare", "-m", "true"], capture_output=True)
    if done.returncode:
        print("  without root: no faults of mounted file systems", file=sys.stderr, flush=True)
    return done.returncode == 0


def mount_small(folder: Path, size: int) -> None:
    """Mount an empty file system of `size` bytes on a folder, for this process and its children alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    for result in (
        libc.unshare(CLONE_NEWNS),
        libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None),
        libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, f"size={size}".encode()),
    ):
        if result:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def fill(folder: Path, room: int) -> None:
    """Fill a file system, but for `room` bytes."""
    with open(folder / "filler", "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)) == 4096:
                pass
        except OSError:
            os.truncate(folder / "filler", max(0, file.tell() - room))
