"""Files of an address space, mapped side by side and opened on demand."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np

from iobench.formats import Array, raw_bytes
from iobench.host.bus_errors import SIGBUS_HANDLED
from iobench.host.disk import is_remote
from iobench.host.maps import GuardedMap
from iobench.host.memory import Bytes
from iobench.stream.addresses import AddressSpace
from iobench.stream.files import DescriptorPool, open_plain, read_into, request, request_bytes


class MappedFiles:
    """Bytes at positions of an address space: from a map if they are in memory, else by plain reads.

    Attributes
    ----------
    memory : uint8 array
        The map of all files. Call `check` after each access.

    Parameters
    ----------
    addresses : AddressSpace
        The files, which its reader closes.
    cold : bool
        True if the bytes may not be in memory.
    reads_slices : bool
        True if slices are read in long pieces, for which the kernel reads ahead.
    """

    def __init__(self, addresses: AddressSpace, cold: bool, reads_slices: bool) -> None:
        self._addresses, self._cold = addresses, cold
        mapped = GuardedMap(addresses.files, addresses.sizes)
        self._guard = mapped.guard  # kept by an error's traceback, which must not keep the map
        self.memory = mapped.bytes
        if cold:  # a readahead thread reads ahead: page faults must not start a readahead of their own
            mapped.advise_random()
        self._files = DescriptorPool(addresses.files, partial(_opened, cold and not reads_slices))
        first = Path(addresses.files[0])
        self._request_bytes = request_bytes(first) if cold and reads_slices and is_remote(first) else None

    def check(self) -> None:
        """Raise OSError if a page of the map was unreadable."""
        self._guard.check()

    def copy(self, position: int, target: Array) -> None:
        """Fill an array with the bytes from a position on."""
        if self._cold or not SIGBUS_HANDLED:
            self.read(position, target)
            return
        into = np.frombuffer(raw_bytes(target), np.uint8)
        into[:] = self.memory[position : position + len(into)]
        try:
            self.check()
        except OSError:
            self.read(position, target)  # names a file that ends too early
            raise

    def read(self, position: int, target: Array) -> None:
        """Fill an array with the bytes from a position on, by plain reads."""
        number, offset = self._addresses.within(position)
        into: Bytes = np.frombuffer(raw_bytes(target), np.uint8)
        with self._files.descriptor(number) as file:
            if self._request_bytes:
                request(file, offset, offset + len(into), self._request_bytes)
            read_into(file, self._addresses.files[number], offset, into)

    def close(self) -> None:
        """Close the files and release the map."""
        self._files.close()
        self.memory = self.memory[:0].copy()


def _opened(random: bool, path: Path) -> int:
    descriptor = open_plain(path)
    if random:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    return descriptor
