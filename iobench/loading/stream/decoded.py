"""Decoded blocks, kept as long as there is room, each decoded by one thread while others wait for it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from iobench.formats import Batch

CACHE_BYTES = 256 << 20  # several windows of block order

Key = tuple[int, int]  # of a table and a block


class Decoding:
    """A block that some thread decodes, or has decoded."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._found: Batch | BaseException | None = None

    def result(self) -> Batch:
        """What was decoded, as soon as it is there; the error that came instead is raised."""
        self._done.wait()
        if isinstance(self._found, BaseException):
            raise self._found
        assert self._found is not None
        return self._found

    def run(self, decode: Callable[[], Batch]) -> None:
        """Decode now."""
        try:
            self._found = decode()
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            self._found = error
        self._done.set()

    @property
    def failed(self) -> bool:
        """Whether an error came of it."""
        return isinstance(self._found, BaseException)


class DecodedBlocks:
    """The blocks that were used last, `CACHE_BYTES` of them at most."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, tuple[Decoding, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def take(self, key: Key, size: int) -> tuple[Decoding, bool]:
        """A block of so many bytes, and whether whoever asks has to `run` it."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None and not found[0].failed:
                self._kept.move_to_end(key)
                return found[0], False
            if found is not None:
                self._bytes -= found[1]
            self._kept[key] = Decoding(), size
            self._kept.move_to_end(key)
            self._bytes += size
            while self._bytes > CACHE_BYTES and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1][1]
            return self._kept[key][0], True

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0
