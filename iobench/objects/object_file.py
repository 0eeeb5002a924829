"""An object as a file that is read once from its first byte to its last."""

from __future__ import annotations

import io
from typing import Any

from iobench.objects.client import ObjectStore
from iobench.objects.reader import RemoteFiles

PIECE_BYTES = 8 << 20  # of a request: as other clients of S3 split large objects


class ObjectFile(io.RawIOBase):
    """Reads an object of an artifact by ranged GETs, one after the other.

    Raises LoaderFailed, CorruptArtifact or InvalidSettings as RemoteFiles.store and its reads do.
    """

    _store: ObjectStore | None = None  # until it is opened

    def __init__(self, files: RemoteFiles, name: str) -> None:
        self._store, self._name, self._object = files.store(), name, files.objects[name]
        self._position, self._piece = 0, memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the start of a buffer; 0 at the end of the object."""
        if not self._piece and (length := min(PIECE_BYTES, self._object.size - self._position)):
            assert self._store is not None
            self._piece = self._store.get(self._name, self._position, length, self._object.etag)
            self._position += length
        count = min(len(buffer), len(self._piece))
        buffer[:count], self._piece = self._piece[:count], self._piece[count:]
        return count

    def close(self) -> None:
        """Close the client."""
        if self._store is not None:
            self._store.close()
        super().close()
