"""Shared LMDB environments of this process, because the library refuses to open one twice."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import ClassVar

import lmdb

from iobench.base.errors import expecting
from iobench.formats.lmdb.meta import read_meta


class Environments:
    """The environments open in this process, by file, with a count of their users."""

    _open: ClassVar[dict[tuple[int, int], tuple[lmdb.Environment, int, int]]] = {}  # …, users, process id
    _lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def open(cls, path: Path, data: Path) -> lmdb.Environment:
        """Return the environment at `path` with data file `data`; CorruptArtifact if there is none."""
        with expecting(data, "an LMDB environment", OSError):
            file = data.stat()
        key = (file.st_dev, file.st_ino)
        with cls._lock:
            env, users, owner = cls._open.get(key) or (_open(path, data), 0, os.getpid())
            cls._open[key] = (env, users + 1, owner)
            return env

    @classmethod
    def close(cls, env: lmdb.Environment) -> None:
        """Release one use of an environment, and close it after the last."""
        with cls._lock:
            key = next(key for key, (known, _, _) in cls._open.items() if known is env)
            _, users, owner = cls._open[key]
            if (
                users > 1 or owner != os.getpid()
            ):  # an environment from before a fork can be read, but closing it may hang
                cls._open[key] = (env, max(0, users - 1), owner)
            else:
                del cls._open[key]
                env.close()


def _open(path: Path, data: Path) -> lmdb.Environment:
    read_meta(data)  # the library divides by these values and maps as many bytes
    with expecting(data, "an LMDB environment", lmdb.Error):
        return lmdb.open(str(path), readonly=True, create=False, lock=False, subdir=path.is_dir())
