"""The seal: a small file in an artifact's folder that says whose it is and what it holds.

It ties the folder to one manifest entry, so that no manifest meets files of other data unnoticed,
and it tells prepare which folders it may remove, and which files in them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec
from msgspec import Meta

from iobench import formats
from iobench.base.errors import (
    IobenchError,
)
from iobench.dataset.staging import sync_directory
from iobench.formats import Field

GENERATION = re.compile(r"-[0-9a-f]{8}$")  # at the end of every folder's name
FILE_NAME = ".iobench-seal.json"
MOST_BYTES = 64 << 20  # more is none of ours


class Seal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What prepare knew of a folder when it had verified it."""

    iobench_seal: Annotated[int, Meta(ge=1, le=1)]  # the version
    folder: str  # its name: a copy under another name is somebody else's
    content: int
    ordered: int
    samples: int
    fields: tuple[Field, ...]
    files: tuple[str, ...]  # paths below the folder

    def same_data(self, other: Seal) -> bool:
        """Whether both are of the same samples in the same fields."""
        return (self.content, self.ordered, self.samples, self.fields) == (
            other.content,
            other.ordered,
            other.samples,
            other.fields,
        )


def write(folder: Path, seal: Seal) -> None:
    """Put a seal into a folder, synced with the folder."""
    with open(folder / FILE_NAME, "wb") as file:
        file.write(msgspec.json.encode(seal))
        file.flush()
        os.fsync(file.fileno())
    sync_directory(folder)


def read(folder: Path) -> Seal | None:
    """The seal of a folder; None where there is none, or none that is whole."""
    file = folder / FILE_NAME
    try:
        if not file.is_file() or file.stat().st_size > MOST_BYTES:
            return None
        return msgspec.json.decode(file.read_bytes(), type=Seal)
    except (OSError, msgspec.DecodeError, ValueError, RecursionError):
        return None


def sweep(root: Path, listed: Collection[str]) -> None:
    """Remove the sealed folders of a dataset that are not listed; what cannot be removed stays for later."""
    for folder in [path for path in root.iterdir() if path.name not in listed]:
        if folder.is_symlink() or not folder.is_dir():
            continue
        with contextlib.suppress(OSError):
            found = read(folder)
            if found is not None and found.folder == folder.name:
                remove(folder, found)
            elif not any(folder.iterdir()) and _named_by_us(folder.name):
                folder.rmdir()  # a removal got as far as the seal


def remove(folder: Path, seal: Seal) -> None:
    """Remove a sealed folder: its own files, then the seal; what somebody put beside them stays.

    The seal goes last, and only when the folder without the files is on disk, so that a removal
    that is cut short is known for what it is and can be finished.
    """
    for name in seal.files:
        if _inside(folder, name):
            (folder / name).unlink(missing_ok=True)
    for inner, _, _ in os.walk(folder, topdown=False):
        if inner != str(folder):
            try:
                os.rmdir(inner)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:  # somebody's file is in it
                    raise
    sync_directory(folder)
    (folder / FILE_NAME).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _named_by_us(name: str) -> bool:
    variant = GENERATION.sub("", name)
    try:
        return formats.parse(variant).variant == variant
    except IobenchError:
        return False


def _inside(folder: Path, name: str) -> bool:
    """Whether a file really is in the folder, whatever is linked where."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts:
        return False
    here, parent = os.path.realpath(folder), os.path.realpath((folder / name).parent)
    return parent == here or parent.startswith(here + os.sep)
