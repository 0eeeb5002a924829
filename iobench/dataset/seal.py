"""Seals: a small file in each artifact's folder that identifies the folder and its content.

A seal ties the folder to one manifest entry, so that a manifest never describes files of other data. It also
tells prepare which folders, and which files in them, it may remove.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from iobench import formats
from iobench.base.errors import IobenchError
from iobench.base.files import name_problem
from iobench.dataset.staging import sync_directory
from iobench.formats import Field

GENERATION = re.compile(r"-[0-9a-f]{8}$")  # suffix of every folder's name
FILE_NAME = ".iobench-seal.json"
MAX_BYTES = 64 << 20  # a larger file is not a seal


class Seal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Identity of a folder and its content when prepare had verified it."""

    iobench_seal: Annotated[int, Meta(ge=1, le=1)]  # the version
    folder: str  # its name: a copy under another name belongs to the user
    content: int
    ordered: int
    samples: int
    fields: tuple[Field, ...]
    files: tuple[str, ...]  # paths below the folder

    def same_data(self, other: Seal) -> bool:
        """Return whether both describe the same samples in the same fields."""
        return msgspec.structs.replace(other, folder=self.folder, files=self.files) == self


def write(folder: Path, seal: Seal) -> None:
    """Write a seal into a folder and sync both to disk."""
    with open(folder / FILE_NAME, "wb") as file:
        file.write(msgspec.json.encode(seal))
        file.flush()
        os.fsync(file.fileno())
    sync_directory(folder)


def read(folder: Path) -> Seal | None:
    """Return the seal of a folder, None if it is missing or damaged; raises PermissionError."""
    file = folder / FILE_NAME
    try:
        if not file.is_file() or file.stat().st_size > MAX_BYTES:
            return None
        return msgspec.json.decode(file.read_bytes(), type=Seal)
    except PermissionError:
        raise
    except (OSError, msgspec.DecodeError, ValueError, RecursionError):
        return None


def sweep(root: Path, listed: Collection[str]) -> None:
    """Remove the sealed folders of a dataset that are not listed; failures are left to the next call."""
    for folder in [path for path in root.iterdir() if path.name not in listed]:
        if folder.is_symlink() or not folder.is_dir():
            continue
        with contextlib.suppress(OSError):
            sealed = read(folder)
            if sealed is not None and sealed.folder == folder.name:
                remove(folder, sealed)
            elif not any(folder.iterdir()) and _is_generated(folder.name):
                folder.rmdir()  # a removal was interrupted after the seal was gone


def remove(folder: Path, seal: Seal) -> None:
    """Remove a sealed folder: its listed files, then the seal. Files of the user in it stay.

    The seal is removed last, after the removal of the files is on disk, so that an interrupted removal is
    recognized and finished later.
    """
    for name in seal.files:
        if _inside(folder, name):
            (folder / name).unlink(missing_ok=True)
    for inner, _, _ in os.walk(folder, topdown=False):
        if inner != str(folder):
            try:
                os.rmdir(inner)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:  # a file of the user is in it
                    raise
    sync_directory(folder)
    (folder / FILE_NAME).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _is_generated(name: str) -> bool:
    variant = GENERATION.sub("", name)
    try:
        return formats.parse(variant).variant == variant
    except IobenchError:
        return False


def _inside(folder: Path, name: str) -> bool:
    """Return whether a file is inside the folder after all links are followed."""
    if name_problem(name):
        return False
    here, parent = os.path.realpath(folder), os.path.realpath((folder / name).parent)
    return parent == here or parent.startswith(here + os.sep)
