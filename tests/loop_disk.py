"""A small disk whose reads can be made to fail."""

import errno
import os
import subprocess


class LoopDisk:
    """A small file system on a loop device, whose reads fail after `fail`; OSError if it cannot be made."""

    def __init__(self, folder):
        self.path, self._backing = folder / "disk", folder / "backing"
        self.path.mkdir(parents=True)
        with open(self._backing, "wb") as file:
            file.truncate(96 << 20)
        if os.geteuid():
            raise OSError(errno.EPERM, "a loop device needs root")
        _call("mkfs.ext4", "-q", "-F", "-O", "^has_journal", str(self._backing))
        _call("mount", "-o", "loop", str(self._backing), str(self.path))

    def fail(self, files):
        """Truncate the file behind the device, and evict the unmapped pages of these files."""
        for file in files:
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
        os.truncate(self._backing, 0)

    def close(self):
        """Unmount the file system."""
        _call("umount", "--lazy", str(self.path))


def _call(*command):
    try:
        subprocess.run(command, check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        raise OSError(errno.EIO, f"{command[0]}: {error.stderr.decode().strip()}") from error
