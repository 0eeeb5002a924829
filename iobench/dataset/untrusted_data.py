"""Data of other programs, or touched by them, and the requests about them to the worker of the sandbox."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from iobench.formats import Schema

LIMIT_S = 120.0  # to identify data, and to read one batch; more for large data:
BYTES_PER_S = 50e6  # one second more for this many bytes
MEMORY_BYTES = 768 << 20  # for reading: a sample, a chunk as stored and as unpacked, and a margin; and
MEMORY_SHARE = 256  # one byte more for this many bytes of data, for tables of rows


@dataclass(frozen=True)
class UntrustedData:
    """A file or folder that iobench did not write, or that was touched since it was verified."""

    path: Path  # the file or folder; may end in `::NAME,NAME` to select arrays
    kind: str  # name of the format that reads it, or a key of `sandbox_worker.ADAPTERS`
    bytes: int  # size, which the limits depend on
    descriptor: int | None = None  # open file to read, whatever has taken its path in the meantime
    stored: Schema | None = None  # schema of all samples that it holds, if only the first of them are read

    @property
    def request(self) -> dict[str, Any]:
        """The part of a request that concerns the data."""
        path = os.fspath(self.path)
        if self.descriptor is not None:  # relative to the worker's folder: see `_worker`
            path = path[len(os.fspath(self.file.parent)) :].lstrip(os.sep)
        return {
            "path": path,
            "kind": self.kind,
            "stored": self.stored and msgspec.to_builtins(self.stored),
            # torch's own maps count in full
            "memory_bytes": MEMORY_BYTES + self.bytes // (1 if self.kind == "torch" else MEMORY_SHARE),
        }

    @property
    def limit_s(self) -> float:
        """Longest time in seconds without a message of the worker."""
        return LIMIT_S + self.bytes / BYTES_PER_S

    @property
    def file(self) -> Path:
        """The path without the selection of arrays."""
        file, separator, _ = os.fspath(self.path).rpartition("::")
        return Path(file) if separator and not os.path.lexists(self.path) else self.path
