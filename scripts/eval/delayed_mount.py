"""A user-space file system that shows a folder, and waits before each request; needs mfusepy and fuse3.

As a program: MOUNTPOINT is given FOLDER until it is unmounted.

    python -m eval.delayed_mount FOLDER MOUNTPOINT READ_MS OPEN_MS
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STATUS = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_ino")
TIMES = ("st_mtime", "st_ctime", "st_atime")
STARTING_S = 10.0


@contextmanager
def delayed_mount(folder: Path, read_ms: float, open_ms: float) -> Iterator[Path]:
    """Yield a mount point that shows a folder read-only; OSError where none can be mounted."""
    with tempfile.TemporaryDirectory() as point:
        command = [sys.executable, "-m", "eval.delayed_mount", folder.resolve(), point, read_ms, open_ms]
        server = subprocess.Popen([*map(str, command)], stderr=subprocess.DEVNULL)
        try:
            _wait(Path(point), server)
            yield Path(point)
        finally:
            subprocess.run(["fusermount3", "-uz", point], check=False, stderr=subprocess.DEVNULL)
            server.terminate()
            server.wait()


def _wait(point: Path, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + STARTING_S
    while not os.path.ismount(point):
        if server.poll() is not None or time.monotonic() > until:
            raise OSError(f"no file system could be mounted at {point}")
        time.sleep(0.05)


def serve(folder: str, point: str, read_ms: str, open_ms: str) -> None:
    """Serve the file system until it is unmounted."""
    import mfusepy

    class Delayed(mfusepy.Operations):  # type: ignore[misc]
        use_ns = True

        def _file(self, path: str) -> str:
            return os.path.join(folder, path.lstrip("/"))

        def getattr(self, path: str, handle: int | None = None) -> dict[str, Any]:
            time.sleep(float(open_ms) / 1e3)
            try:
                status = os.stat(self._file(path))
            except OSError as error:
                raise mfusepy.FuseOSError(error.errno) from error
            times = {name: getattr(status, f"{name}_ns") for name in TIMES}
            return {name: getattr(status, name) for name in STATUS} | times

        def readdir(self, path: str, handle: int) -> list[str]:
            return [".", "..", *os.listdir(self._file(path))]

        def open(self, path: str, flags: int) -> int:
            time.sleep(float(open_ms) / 1e3)
            return os.open(self._file(path), os.O_RDONLY)

        def read(self, path: str, size: int, offset: int, handle: int) -> bytes:
            time.sleep(float(read_ms) / 1e3)
            return os.pread(handle, size, offset)

        def release(self, path: str, handle: int) -> None:
            os.close(handle)

    mfusepy.FUSE(Delayed(), point, foreground=True, fsname="delayed", subtype="delayed", ro=True)


if __name__ == "__main__":
    serve(*sys.argv[1:])
