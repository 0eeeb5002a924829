"""Stand-in for KvikIO as the loader `gds` uses it, with POSIX reads as late as possible."""

import enum
import os

from kvikio import cufile_driver, defaults

__all__ = ["CompatMode", "CuFile", "cufile_driver", "defaults"]

opened = []


class CompatMode(enum.Enum):
    ON = 1


class Read:
    """A read that happens when its result is waited for."""

    def __init__(self, file, memory, size, offset):
        self.request = (file, memory, size, offset)

    def get(self):
        file, memory, size, offset = self.request
        data = os.pread(file.descriptor, size, offset)
        target = memory.memory().numpy() if hasattr(memory, "memory") else memory
        memoryview(target).cast("B")[: len(data)] = data
        return len(data)


class CuFile:
    def __init__(self, path, flags):
        assert flags == "r"
        self.descriptor, self.reads = os.open(path, os.O_RDONLY), []
        opened.append(self)

    def pread(self, memory, size, offset):
        self.reads.append((offset, size))
        return Read(self, memory, size, offset)

    def close(self):
        os.close(self.descriptor)
        opened.remove(self)
