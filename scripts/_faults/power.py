"""A disk that forgets what was not synced when the power goes."""

from __future__ import annotations

import os
import random
import shutil
import stat
from pathlib import Path

_link = os.link  # as it is before anybody counts its calls


class Disk:
    """Knows of a folder what is on disk for certain: files and lists of names as they were last synced.

    A hard link keeps each synced file, and an open descriptor each synced folder, so that no
    inode number is used twice. Of the names that were not synced each is on disk all the same with
    probability `luck`, because a file system promises no order between them; what was written
    to a file and not synced is lost.
    """

    def __init__(self, root: Path, kept: Path, luck: float, chance: random.Random) -> None:
        self.root, self.kept, self.luck, self.chance = root, kept, luck, chance
        self.names: dict[int, dict[str, int]] = {}
        self.folders: set[int] = set()
        kept.mkdir()
        for path in [root, *root.rglob("*")]:
            descriptor = os.open(path, os.O_RDONLY)
            self.synced(descriptor)
            os.close(descriptor)

    def synced(self, descriptor: int) -> None:
        """Remember that a file or folder is on disk as it is."""
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            if status.st_ino not in self.folders:
                os.dup(descriptor)
            self.folders.add(status.st_ino)
            self.names[status.st_ino] = _names(descriptor)
        elif not self._copy_of(status.st_ino).exists():
            _link(os.readlink(f"/proc/self/fd/{descriptor}"), self._copy_of(status.st_ino))

    def fail(self) -> None:
        """Leave of the folder what a power failure now leaves."""
        here = {path.stat().st_ino: path for path in [self.root, *self.root.rglob("*")]}
        rebuilt = self.kept / "rebuilt"
        self._rebuild(self.root.stat().st_ino, rebuilt, here)
        shutil.rmtree(self.root)
        rebuilt.rename(self.root)

    def _rebuild(self, folder: int, target: Path, here: dict[int, Path]) -> None:
        target.mkdir()
        certain = self.names.get(folder, {})
        current = _names(here[folder]) if folder in here else certain
        for name in sorted(certain.keys() | current.keys()):
            chosen = (current if self.chance.random() < self.luck else certain).get(name)
            if chosen is None:
                continue
            if chosen in self.folders or (chosen in here and here[chosen].is_dir()):
                self._rebuild(chosen, target / name, here)
            elif self._copy_of(chosen).exists():
                shutil.copy2(self._copy_of(chosen), target / name)
            else:  # never synced: its name is there, its content is not
                (target / name).touch()

    def _copy_of(self, inode: int) -> Path:
        return self.kept / str(inode)


def _names(folder: int | Path) -> dict[str, int]:
    with os.scandir(folder) as entries:
        return {entry.name: entry.inode() for entry in entries}
