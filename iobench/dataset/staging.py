"""Folders that appear complete or not at all, their seals, and the lock for one writer at a time.

The protocol of prepare is *write aside, list, sweep*. Each step is on disk before the next begins:

1. Lock the dataset folder. Sweep: remove `.tmp-*`, and sealed folders that the manifest does not list.
2. Write each artifact into a `.tmp-*` of its own, sync its files and folders, read it back and compare,
   seal it, and sync seal and folder.
3. Rename it to `<variant>-<generation>`, a name that has never been used, and sync the dataset folder. The
   manifest does not list it yet, so no reader sees it.
4. List: write the new manifest under a temporary name, sync it, rename it over the old one, and sync the
   dataset folder. This rename is the single moment at which the new data replace the old. Missing or damaged
   artifacts are listed one by one; with `--overwrite` all requested artifacts are listed together, once the
   last of them is verified.
5. Sweep what the manifest no longer lists: an artifact's files, then its seal, then its folder.

If prepare is killed before the rename of step 4, the old dataset is complete and the next prepare sweeps the
new files. If it is killed after it, the new dataset is complete and the next prepare sweeps the old files.
Files are never moved back, so no interruption can mix the two. If prepare fails before that rename, it
removes what it had finished; after it, only sweeping is left to do.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Annotated

import msgspec
from msgspec import Meta

from iobench import formats
from iobench.base.errors import IobenchError, PrepareError
from iobench.base.files import TEMPORARY, name_problem
from iobench.formats import Field

LOCK = ".lock"
LOCK_TRIES = 100
WRITE_BACK_EVERY_S = 0.03

_WRITE = 2  # SYNC_FILE_RANGE_WRITE
_libc = ctypes.CDLL(None)


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Create a dataset folder and lock it; raises PrepareError if another prepare holds the lock."""
    with _lock(root):
        try:
            yield
        finally:
            if [path.name for path in root.iterdir()] == [LOCK]:  # a refused prepare leaves nothing behind
                (root / LOCK).unlink()
                root.rmdir()


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
        # the holder of the lock removed the folder in between
    raise PrepareError(
        "another 'iobench prepare' is writing", kind="locked", path=root, hint="wait until it has finished"
    )


def _make(root: Path) -> None:
    """Create a folder with its missing parents and sync them to disk."""
    missing = [path for path in (root, *root.parents) if not path.exists()]
    root.mkdir(parents=True, exist_ok=True)
    for path in missing:
        with contextlib.suppress(PermissionError):  # a folder may be writable but not readable
            sync_directory(path.parent)


def new_generation() -> str:
    """Return eight random hexadecimal digits for the name of a folder."""
    return secrets.token_hex(4)


@contextlib.contextmanager
def temporary(root: Path) -> Iterator[Path]:
    """Yield a path for a new folder, which is removed at the end unless it was renamed."""
    folder = root / f"{TEMPORARY}{new_generation()}"
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_temporary(root: Path) -> None:
    """Remove the temporary files of prepares that were killed."""
    for path in root.glob(f"{TEMPORARY}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):  # the next prepare tries again
                path.unlink()


@contextlib.contextmanager
def writing_back(folder: Path) -> Iterator[None]:
    """Start write-back of a folder's files regularly while the body writes them.

    Otherwise the kernel starts at the final sync, and producing and storing the data do not overlap.
    sync_file_range(2) neither waits nor consumes errors, which the final sync still reports.
    """
    done = threading.Event()

    def push() -> None:
        while not done.wait(WRITE_BACK_EVERY_S):
            for inner, _, names in os.walk(folder):  # which skips folders that are removed meanwhile
                for name in names:
                    with contextlib.suppress(OSError), open(os.path.join(inner, name), "rb") as file:
                        _libc.sync_file_range(file.fileno(), ctypes.c_int64(0), ctypes.c_int64(0), _WRITE)

    thread = threading.Thread(target=push, name="iobench-write-back", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def sync(folder: Path) -> None:
    """Sync a folder to disk: all files below it, then the folders from the inside out."""
    for inner, _, names in os.walk(folder, topdown=False):
        for name in names:
            with open(os.path.join(inner, name), "rb") as file:
                os.fsync(file.fileno())
        sync_directory(Path(inner))


def sync_directory(folder: Path) -> None:
    """Sync the entries of a directory to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def os_errors(root: Path) -> Iterator[None]:
    """Convert an OSError in the body to a PrepareError about its file, by default `root`."""
    try:
        yield
    except IobenchError:
        raise
    except OSError as error:  # libraries put several lines into strerror
        reason = os.strerror(error.errno) if error.errno else str(error).splitlines()[0]
        problem = f"{reason} (incomplete files were removed)"
        raise PrepareError(problem, path=error.filename or root) from error


GENERATION = re.compile(r"-[0-9a-f]{8}$")  # suffix of every folder's name
SEAL = ".iobench-seal.json"
MOST_SEAL_BYTES = 64 << 20  # a larger file is not a seal


class Seal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Identity of an artifact's folder and its content when prepare had verified it, in a file there.

    It ties the folder to one manifest entry, so that a manifest never describes files of other data. It also
    tells prepare which folders, and which files in them, it may remove.
    """

    iobench_seal: Annotated[int, Meta(ge=1, le=1)]  # the version
    folder: str  # its name: a copy under another name belongs to the user
    content: int
    ordered: int
    samples: int
    fields: tuple[Field, ...]
    files: tuple[str, ...]  # paths below the folder

    @classmethod
    def read(cls, folder: Path) -> Seal | None:
        """Return the seal of a folder, None if it is missing or damaged; raises PermissionError."""
        file = folder / SEAL
        try:
            if not file.is_file() or file.stat().st_size > MOST_SEAL_BYTES:
                return None
            return msgspec.json.decode(file.read_bytes(), type=cls)
        except PermissionError:
            raise
        except (OSError, ValueError, RecursionError):
            return None

    def write(self, folder: Path) -> None:
        """Write it into a folder and sync both to disk."""
        with open(folder / SEAL, "wb") as file:
            file.write(msgspec.json.encode(self))
            file.flush()
            os.fsync(file.fileno())
        sync_directory(folder)

    def remove(self, folder: Path) -> None:
        """Remove the folder: its listed files, then the seal. Files of the user in it stay.

        The seal is removed last, after the removal of the files is on disk, so that an interrupted removal is
        recognized and finished later.
        """
        here = os.path.realpath(folder)
        for file in [folder / name for name in self.files if not name_problem(name)]:
            if Path(os.path.realpath(file.parent)).is_relative_to(here):  # also behind links
                file.unlink(missing_ok=True)
        for inner, _, _ in os.walk(folder, topdown=False):
            if inner != str(folder):
                try:
                    os.rmdir(inner)
                except OSError as error:
                    if error.errno != errno.ENOTEMPTY:  # a file of the user is in it
                        raise
        sync_directory(folder)
        (folder / SEAL).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.rmdir()


def sweep(root: Path, listed: Collection[str]) -> None:
    """Remove the sealed folders of a dataset that are not listed; failures are left to the next call."""
    for folder in [path for path in root.iterdir() if path.name not in listed]:
        if folder.is_symlink() or not folder.is_dir():
            continue
        with contextlib.suppress(OSError):
            seal = Seal.read(folder)
            if seal is not None and seal.folder == folder.name:
                seal.remove(folder)
            elif not any(folder.iterdir()) and _is_generated(folder.name):
                folder.rmdir()  # a removal was interrupted after the seal was gone


def _is_generated(name: str) -> bool:
    variant = GENERATION.sub("", name)
    try:
        return formats.parse(variant).variant == variant
    except IobenchError:
        return False
