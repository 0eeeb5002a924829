"""Folders that appear whole or not at all, and one writer at a time."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from iobench.errors import BenchError, PrepareError
from iobench.formats import FormatError

LOCK, TEMPORARY = ".lock", ".tmp-"
WRITE_BACK_EVERY_S = 0.03

_WRITE = 2  # SYNC_FILE_RANGE_WRITE
_libc = ctypes.CDLL(None)


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Keep every other prepare out of a dataset folder; PrepareError where one is at work."""
    with open(root / LOCK, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PrepareError(f"{root}: another 'iobench prepare' is writing there; wait for it") from None
        try:
            yield
        finally:
            _remove_if_unused(root)


def _remove_if_unused(root: Path) -> None:
    """Remove a folder in which nothing was prepared, so that a refusal leaves none behind."""
    if [path.name for path in root.iterdir()] == [LOCK]:
        (root / LOCK).unlink()
        root.rmdir()


@contextlib.contextmanager
def temporary(root: Path) -> Iterator[Path]:
    """A path for a new folder that is gone afterwards, unless it was renamed."""
    folder = root / f"{TEMPORARY}{os.getpid()}-{time.monotonic_ns()}"
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def in_place(folder: Path, target: Path) -> Iterator[None]:
    """A finished folder under its final name; if the body fails, what was there before is back."""
    with temporary(target.parent) as old:
        if target.exists():
            target.rename(old)
        try:
            folder.rename(target)
            sync_directory(target.parent)
            yield
        except BaseException:
            if target.exists():
                target.rename(folder)
            if old.exists():
                old.rename(target)
            raise


def remove_leftovers(root: Path) -> None:
    """Remove what a killed prepare left behind."""
    for path in root.glob(f"{TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True)


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
    """Put a folder and every file in it on disk."""
    for path in [p for p in folder.rglob("*") if p.is_file()]:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    sync_directory(folder)


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
    except (BenchError, FormatError):
        raise
    except OSError as error:  # libraries put several lines into strerror
        reason = os.strerror(error.errno) if error.errno else str(error).splitlines()[0]
        raise PrepareError(f"{error.filename or root}: {reason}; nothing half-written was kept") from error
