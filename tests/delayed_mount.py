"""A user-space file system that shows a folder, and waits before each request; needs mfusepy and fuse3.

python delayed_mount.py FOLDER MOUNTPOINT READ_MS OPEN_MS
"""

import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

STATUS = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_ino")
TIMES = ("st_mtime", "st_ctime", "st_atime")
STARTING_S = 60.0


@contextmanager
def delayed_mount(folder, read_ms, open_ms):
    """Yield a mount point that shows a folder read-only; OSError where none can be mounted."""
    with tempfile.TemporaryDirectory() as point:
        command = [sys.executable, __file__, folder.resolve(), point, read_ms, open_ms]
        server = subprocess.Popen([*map(str, command)], stderr=subprocess.DEVNULL)
        try:
            _wait(Path(point), server)
            yield Path(point)
        finally:
            subprocess.run(["fusermount3", "-uz", point], check=False, stderr=subprocess.DEVNULL)
            server.terminate()
            server.wait()


def _wait(point, server):
    until = time.monotonic() + STARTING_S
    while not os.path.ismount(point):
        if server.poll() is not None or time.monotonic() > until:
            raise OSError(f"no file system could be mounted at {point}")
        time.sleep(0.05)


def serve(folder, point, read_ms, open_ms):
    """Serve the file system until it is unmounted."""
    import mfusepy

    class Delayed(mfusepy.Operations):
        use_ns = True

        def _file(self, path):
            return os.path.join(folder, path.lstrip("/"))

        def getattr(self, path, handle=None):
            time.sleep(float(open_ms) / 1e3)
            try:
                status = os.stat(self._file(path))
            except OSError as error:
                raise mfusepy.FuseOSError(error.errno) from error
            times = {name: getattr(status, f"{name}_ns") for name in TIMES}
            return {name: getattr(status, name) for name in STATUS} | times

        def readdir(self, path, handle):
            return [".", "..", *os.listdir(self._file(path))]

        def open(self, path, flags):
            time.sleep(float(open_ms) / 1e3)
            return os.open(self._file(path), os.O_RDONLY)

        def read(self, path, size, offset, handle):
            time.sleep(float(read_ms) / 1e3)
            return os.pread(handle, size, offset)

        def release(self, path, handle):
            os.close(handle)

    mfusepy.FUSE(Delayed(), point, foreground=True, fsname="delayed", subtype="delayed", ro=True)


if __name__ == "__main__":
    serve(*sys.argv[1:])
