"""LMDB environments that are open in this process: the library refuses to open one twice."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import ClassVar

import lmdb

from iobench.base.errors import (
    corrupt,
)
from iobench.formats._lmdb_meta import read_meta


class Environments:
    """The environments open in this process, by file: LMDB refuses to open one twice."""

    _open: ClassVar[dict[tuple[int, int], tuple[lmdb.Environment, int, int]]] = {}  # users, process
    _lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def open(cls, path: Path, data: Path) -> lmdb.Environment:
        try:
            file = data.stat()
        except OSError as error:
            raise corrupt(data, "an LMDB environment", error) from error
        key = (file.st_dev, file.st_ino)
        with cls._lock:
            env, users, owner = cls._open.get(key) or (_open(path, data), 0, os.getpid())
            cls._open[key] = (env, users + 1, owner)
            return env

    @classmethod
    def close(cls, env: lmdb.Environment) -> None:
        with cls._lock:
            key = next(key for key, (known, _, _) in cls._open.items() if known is env)
            _, users, owner = cls._open[key]
            if users > 1 or owner != os.getpid():  # an inherited one can be read, but closing it may hang
                cls._open[key] = (env, max(0, users - 1), owner)
            else:
                del cls._open[key]
                env.close()


def _open(path: Path, data: Path) -> lmdb.Environment:
    read_meta(data)  # the library divides and maps by what stands there
    try:
        return lmdb.open(str(path), readonly=True, create=False, lock=False, subdir=path.is_dir())
    except lmdb.Error as error:
        raise corrupt(data, "an LMDB environment", error) from error
