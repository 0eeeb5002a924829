"""Folders that appear whole or not at all, and one writer at a time.

The protocol of prepare, *write beside, list, sweep*. Each step is on disk before the next begins:

1. Lock the dataset folder. Sweep: remove `.tmp-*`, and sealed folders that the manifest does not list.
2. Write beside: each artifact into a `.tmp-*` of its own; sync its files and folders; read it
   back and compare; seal it, sync seal and folder.
3. Rename it to `<variant>-<generation>`, a name that never was; sync the dataset folder. Nothing
   lists it yet, so nobody reads it.
4. List: write the new manifest beside the old one, sync it, rename it over the old one, sync the
   dataset folder. This rename is the one moment at which old becomes new. Whatever is missing or
   damaged is listed artifact by artifact; with `--overwrite` all that was asked for is listed at
   once, when the last of it is verified.
5. Sweep what the manifest no longer lists: an artifact's files, then its seal, then its folder. A
   folder of version 1 got its seal before step 4, so that this is known of it too.

Killed before the rename of step 4, the old dataset is whole and the new files are swept by the next
prepare; killed after it, the new dataset is whole and the old files are. Nothing is ever moved back,
so no interruption at any place can mix the two. Who fails before that rename removes what it had
finished; after it, only sweeping is left to do.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import secrets
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from iobench.base.errors import (
    IobenchError,
    PrepareError,
)

LOCK, TEMPORARY = ".lock", ".tmp-"
LOCK_TRIES = 100
WRITE_BACK_EVERY_S = 0.03

_WRITE = 2  # SYNC_FILE_RANGE_WRITE
_libc = ctypes.CDLL(None)


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Make a dataset folder and keep every other prepare out of it; PrepareError where one is at work."""
    with _lock(root):
        try:
            yield
        finally:
            _remove_if_unused(root)


def _lock(root: Path) -> IO[str]:
    for _ in range(LOCK_TRIES):
        _make(root)
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as stack:
            lock = stack.enter_context(open(root / LOCK, "w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                break
            if os.path.samestat(os.fstat(lock.fileno()), os.stat(root / LOCK)):
                stack.pop_all()
                return lock
        # whoever held the lock removed the folder in between
    raise PrepareError(f"{root}: another 'iobench prepare' is writing there; wait for it")


def _make(root: Path) -> None:
    """Make a folder and what is missing above it, all on disk."""
    missing = [path for path in (root, *root.parents) if not path.exists()]
    root.mkdir(parents=True, exist_ok=True)
    for path in missing:
        with contextlib.suppress(PermissionError):  # writing into a folder takes less than reading it
            sync_directory(path.parent)


def _remove_if_unused(root: Path) -> None:
    """Remove a folder in which nothing was prepared, so that a refusal leaves none behind."""
    if [path.name for path in root.iterdir()] == [LOCK]:
        (root / LOCK).unlink()
        root.rmdir()


def new_generation() -> str:
    """Eight hexadecimal digits that no folder was named with before."""
    return secrets.token_hex(4)


@contextlib.contextmanager
def temporary(root: Path) -> Iterator[Path]:
    """A path for a new folder that is gone afterwards, unless it was renamed."""
    folder = root / f"{TEMPORARY}{new_generation()}"
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_temporary(root: Path) -> None:
    """Remove what a killed prepare was writing."""
    for path in root.glob(f"{TEMPORARY}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):  # the next prepare tries again
                path.unlink()


@contextlib.contextmanager
def writing_back(folder: Path) -> Iterator[None]:
    """While the body writes into a folder, keep the disk busy with what is already written.

    Else the kernel starts only at the final sync, and writing takes as long as producing the
    data and storing it one after the other. sync_file_range(2) neither waits nor takes an
    error away from that sync, which reports it.
    """
    done = threading.Event()

    def push() -> None:
        while not done.wait(WRITE_BACK_EVERY_S):
            for path in [p for p in folder.rglob("*") if p.is_file()]:
                with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                    _libc.sync_file_range(file.fileno(), ctypes.c_int64(0), ctypes.c_int64(0), _WRITE)

    thread = threading.Thread(target=push, name="iobench-write-back", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def sync(folder: Path) -> None:
    """Put a folder and everything below it on disk: the files, then the folders from the inside out."""
    for inner, _, names in os.walk(folder, topdown=False):
        for name in names:
            with open(os.path.join(inner, name), "rb") as file:
                os.fsync(file.fileno())
        sync_directory(Path(inner))


def sync_directory(folder: Path) -> None:
    """Put a directory's entries on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def os_errors(root: Path) -> Iterator[None]:
    """Whatever the operating system refuses, as one line about the folder it happened in."""
    try:
        yield
    except IobenchError:
        raise
    except OSError as error:  # libraries put several lines into strerror
        reason = os.strerror(error.errno) if error.errno else str(error).splitlines()[0]
        raise PrepareError(f"{error.filename or root}: {reason}; nothing half-written was kept") from error
